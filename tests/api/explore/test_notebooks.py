"""Executes the notebooks from top to bottom and checks the values of their variables."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from jobs.demo.collection import make_demo_collection
from tests.support.paths import ROOT
from tests.support.processes import python

FOLDER = ROOT / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def large_demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More pictures than are looked up at a time."""
    return make_demo_collection(tmp_path_factory.mktemp("large-demo"), count=1_200).location


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_demo_collection(tmp_path_factory.mktemp("demo")).location


class Executed:
    """A notebook that has run, and its kernel, which evaluates expressions."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def value(self, expression: str) -> Any:
        """The value of an expression in the notebook's names, as JSON returns it."""
        cell = nbformat.v4.new_code_cell(f"import json; print(json.dumps({expression}, default=float))")
        self._client.nb.cells.append(cell)
        done = self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return json.loads(done.outputs[0]["text"])

    def outputs(self, mime: str) -> list[str]:
        """The outputs of all cells with this MIME type."""
        data = [output.get("data", {}) for cell in self._client.nb.cells for output in cell.get("outputs", [])]
        return [each[mime] for each in data if mime in each]


@contextmanager
def executed_notebook(name: str, collection: str) -> Iterator[Executed]:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    client = NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    with client.setup_kernel(env={**os.environ, "LIKENESS_COLLECTION": collection}):
        for number, cell in enumerate(list(notebook.cells)):
            client.execute_cell(cell, number)
        yield Executed(client)


@pytest.fixture
def executed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executed]:
    collection = request.getfixturevalue("large_demo" if "map" in request.param else "demo")
    monkeypatch.setenv("PYTHONWARNINGS", "error::DeprecationWarning:__main__")
    with executed_notebook(request.param, collection) as executed:
        yield executed


def runs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("executed", [name], indirect=True)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_have_no_outputs_and_begin_with_what_the_reader_will_learn(name: str) -> None:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    assert notebook.cells[0].source.startswith("# ")
    assert "You will learn" in notebook.cells[0].source
    nbformat.validate(notebook)
    assert notebook.metadata.keys() <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
    # They import only what is installed.
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"^\s*(from|import) (benchmarks|tests)\b", code, re.MULTILINE)
    assert "hundred" not in notebook.cells[0].source  # the reader chooses the collection


@pytest.mark.slow
@runs("01_explore_neighbours.ipynb")
def test_exploring_neighbours(executed: Executed) -> None:
    labels = "[match.metadata['label'] for match in {}]"
    assert executed.value("best.image_id").endswith("striped-red-star.jpg")
    assert executed.value(f"{labels.format('by_words')}.count('star')") >= 9
    # A blue disc on white.
    assert executed.value("'-blue-circle.' in by_picture[0].image_id")
    assert executed.value("sum('blue' in m.image_id or 'circle' in m.image_id for m in by_picture)") >= 7
    # The query itself is left out, and its copy in all but the background comes first.
    assert executed.value("best.image_id in [match.image_id for match in by_id]") is False
    assert executed.value("by_id[0].percentile") > 99
    # This, but blue: still a striped star, and blue.
    assert "striped-blue-star" in executed.value("but_blue[0].image_id")
    assert executed.value("sum('-red-' in match.image_id for match in but_blue)") == 0
    assert set(executed.value(labels.format("narrow_moons"))) == {"moon"}
    # Three other tools name the same five, with the same scores.
    expected = executed.value("[[m.image_id, m.score] for m in likeness.search(query, k=5)]")
    for tool in ("in_pandas.values.tolist()", "in_polars.rows()", "in_duckdb.values.tolist()"):
        found = executed.value(tool)
        assert [image_id for image_id, _ in found] == [image_id for image_id, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    grids = [html for html in executed.outputs("text/html") if 'class="likeness"' in html]
    assert len(grids) == 6  # five searches, and the static grid of the widget
    assert len(executed.outputs("application/vnd.jupyter.widget-view+json")) == 1
    assert len(executed.outputs("image/png")) == 1


@pytest.fixture(scope="module")
def pictures_only(demo: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A collection of a class without `embed_texts`, of pictures in one folder, so without labels."""
    folder = tmp_path_factory.mktemp("palette")
    (folder / "pictures").mkdir()
    for path in Path(demo).with_name("pictures").glob("*/*"):
        shutil.copy(path, folder / "pictures")
    (source,) = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs/embedders.md").read_text())
    (folder / "palette.py").write_text(source)
    arguments = ("-m", "likeness", "embed", "pictures", "c", "--embedder", "palette:Histogram", "--on", "local")
    done = python(*arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return str(folder / "c")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01_explore_neighbours.ipynb", "02_map_the_collection.ipynb"])
def test_notebooks_need_no_words(pictures_only: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKENESS_EMBEDDER", "palette:Histogram")
    monkeypatch.setenv("PYTHONPATH", str(Path(pictures_only).parent), prepend=os.pathsep)
    with executed_notebook(name, pictures_only) as done:
        assert done.value("likeness.understands('red')") is False
        assert len(done.outputs("text/html")) >= 6


@pytest.mark.slow
@runs("02_map_the_collection.ipynb")
def test_mapping_the_collection(executed: Executed) -> None:
    assert executed.value("len(found.ids)") == executed.value("len(likeness)") == 1_188
    by_cluster, by_label, marked = [html for html in executed.outputs("text/html") if "<svg" in html]
    for drawn in (by_label, by_cluster, marked):
        assert drawn.count("<circle") == 1_188
        assert drawn.count("<image") > 60
    assert (by_label.count("<text"), by_cluster.count("<text")) == (8, 15)
    assert marked.count("<text") == 2
    assert executed.value("clusters.groups") == executed.value("len({*kinds})") == 24  # √594
    # Most clusters are of one shape.
    agreed = np.mean([label in name for label, name in zip(*executed.value("[labels, kinds]"), strict=True)])
    assert agreed > 0.75
    assert executed.value("sorted(likeness.labels.values())") == ["keep"] * 6 + ["look again"] * 6
    assert executed.value("min(score for group in groups for score in group.scores)") >= 0.97
    lone = executed.value("[row['lone'] for row in rows]")
    assert executed.value("[match.metadata['lone'] for match in alone]") == sorted(lone, reverse=True)[:12]
    assert executed.value("votes['agreement'].to_numpy().mean()") > 0.74  # by chance an eighth would agree
    assert executed.value("len(agreement)") == 8
    assert executed.value("len(caught)") >= 17
    # Distinct pictures, of each kind the same number.
    assert executed.value("sorted(match.metadata['pick'] for match in picks)") == [*range(1, 25)]
    assert executed.value("len({match.metadata['kind'] for match in picks})") == 24
    assert 0 < executed.value("leaks.total") < 24  # what was pruned is still there
    assert executed.value("os.listdir(exported)") != []


@pytest.mark.slow
@runs("03_choose_an_index.ipynb")
def test_choosing_an_index(executed: Executed) -> None:
    assert executed.value("considered[considered['chosen']]['name'].tolist()") == ["Flat"]
    names = executed.value("by_size['index'].tolist()")
    assert names[0] == "Flat"
    assert all("IVF" in name and "Refine" in name for name in names[2:])
    assert ["Refine" in name for name in executed.value("tight['index'].tolist()")] == [True, False]
    flat, ivf = executed.value("list(zip(measured.loc['index'], measured.loc['recall@10']))")
    assert flat == ["Flat", 1.0]
    assert "IVF" in ivf[0]
    assert ivf[1] >= 0.99
    # Each setting was searched before it was timed, and all of them in every lap.
    assert executed.value("np.shape(laps)") == [20, len(executed.value("settings"))]
    recalls = executed.value("curve['recall@10'].tolist()")
    assert recalls[0] < recalls[-1]
    assert recalls == pytest.approx(sorted(recalls), abs=0.005)
    assert executed.value("here['recall@10'].item()") > 0.985


@pytest.mark.slow
@runs("04_scheduled_reembedding.ipynb")
def test_reading_the_results_of_a_scheduled_job(executed: Executed) -> None:
    assert executed.value("runs['embedded'].tolist()") == [240, 28]
    assert executed.value("runs['rejected'].tolist()") == [0, 3]
    assert executed.value("runs['deleted'].tolist()") == [0, 12]
    assert executed.value("sorted(rejects['image_id'])") == executed.value("sorted(nights.broken)")
    changes = executed.value("[sorted(changed.added), sorted(changed.removed), sorted(changed.edited)]")
    assert changes == executed.value("[*map(sorted, (nights.new, nights.gone + nights.broken, nights.edited))]")
    assert [*map(len, changes)] == [20, 12 + 3, 8]
    assert executed.value("segments['live'].sum()") == 240 - 12 - 3 + 20
    assert executed.value("max(moved)") < 0.9999
    assert executed.value("gate['recall@10'].tolist()") == [1.0, 1.0]
    assert executed.value("live") == "000002"
    # The model with noise in its weights is another one, and worse.
    assert executed.value("shared.mean()") < 0.8
    better, worse = executed.value("by_label.loc['all'].tolist()")
    assert better > worse + 0.1
    assert executed.value("len(by_a) == len(by_b) == 6")


@pytest.mark.slow
@runs("05_from_a_folder_to_labels.ipynb")
def test_going_from_a_folder_to_labels(executed: Executed) -> None:
    count = executed.value("len(likeness.searcher.segments.live_positions())")
    assert executed.value("len(found)") == count >= 230
    assert executed.value("right.mean()") >= 0.85
    # With fewer labels left, more of them are right.
    assert executed.value("curve['left'].is_monotonic_decreasing")
    assert executed.value("curve['right'].iloc[10]") >= executed.value("curve['right'].iloc[0]")
    hearts = executed.value("[m.metadata for m in red_hearts]")
    assert len(hearts) == 8
    assert {match["shape"] for match in hearts} == {"a heart"}
    assert min(match["shape_margin"] for match in hearts) > executed.value("min_margin")
    assert executed.value("'-red-heart' in red_hearts[0].image_id")
    # As calculated from the exported vectors and columns alone.
    assert executed.value("len(exported)") == count
    vectors = np.array(executed.value("exported['embedding'].map(list).tolist()"))
    labels = np.array(executed.value("exported['label'].tolist()"))
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    hits = labels[np.argsort(-cosines, axis=1)[:, :10]] == labels[:, np.newaxis]
    assert executed.value("overall.precision['10'].value") == pytest.approx(hits.mean(), abs=2e-3)
    assert executed.value("len(classes)") == 8
    assert executed.value("chance") == pytest.approx(np.mean(labels[:, np.newaxis] == labels), abs=1e-6)
    assert executed.value("exported.set_index('image_id')['shape'].equals(found.set_index('image_id')['shape'])")
    assert len(executed.outputs("image/png")) == 2


@pytest.mark.slow
@runs("06_search_over_http.ipynb")
def test_searching_over_http(executed: Executed) -> None:
    def found(name: str) -> list[str]:
        return [str(image_id) for image_id in executed.value(f"[match.image_id for match in {name}.matches]")]

    assert found("by_words")[0].endswith("striped-red-star.jpg")
    assert "-blue-circle." in found("by_picture")[0]
    assert executed.value("best.image_id in [match.image_id for match in by_id.matches]") is False
    assert "-red-square." in found("by_part")[0]
    assert {image_id.partition("/")[0] for image_id in found("moons")} == {"moon"}
    assert "lable" in executed.value("refused")
    assert all(f"-{colour}-heart" in found(f"many[{at}]")[0] for at, colour in enumerate(executed.value("colours")))
    assert executed.value("len(latency)") == 80
    assert executed.value("(latency['round trip'] > latency['total']).all().item()")
    assert len(executed.outputs("image/png")) == 6
    assert executed.value("server.returncode is not None")
