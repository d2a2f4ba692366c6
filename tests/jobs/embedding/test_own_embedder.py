"""A user's own class instead of a model, in every command, the server and notebooks."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api.build_service import build_collections, build_service
from api.deployment.application import run as serve
from api.errors import OtherModelError
from api.explore import Likeness
from api.http.app import create_app
from api.problems import TextNotSupported, UnusableImage
from api.search.query import Part, Query
from api.search.service import SearchService
from api.settings import ServeSettings
from embedder.errors import ModelError
from embedder.models.load import find_model, load_embedder
from index.builder.build_index import build_index
from index.collection import Collection
from jobs.embedding.model_source import ModelSource
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.collections.small_collection import PLAIN, png
from tests.support.command_line import Result, Run
from tests.support.listings import write_files
from tests.support.nights.fake_job import embed as embed_on_ray
from tests.support.paths import ROOT
from tests.support.processes import python

HISTOGRAM = "palette:Histogram"
(EXAMPLE,) = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs/embedders.md").read_text())
OTHERS = '''

class Worded(Histogram):
    def embed_texts(self, texts):
        channels = {"red": 48, "green": 12, "blue": 3}
        return np.array([np.eye(64)[channels[text]] if text in channels else np.zeros(64) for text in texts])

class Picky(Histogram):
    """Fails on green, has no number for blue, and none at all for black."""
    def embed_images(self, pixels):
        vectors = super().embed_images(pixels)
        if (pixels[:, 0, 0] == (30, 200, 40)).all(axis=1).any():
            raise ValueError("unlucky \\udcff")
        vectors[(pixels[:, 0, 0] == (20, 40, 210)).all(axis=1)] = np.nan
        vectors[(pixels[:, 0, 0] == 0).all(axis=1)] = 0
        return vectors

class Broken(Histogram):
    def embed_images(self, pixels):
        raise RuntimeError("no weights")

class Short(Histogram):
    def embed_images(self, pixels):
        return super().embed_images(pixels)[:, 1:]

class Whole(Histogram):
    def embed_images(self, pixels):
        return super().embed_images(pixels).astype(int)

class Chatty(Worded):
    def __init__(self):
        print("constructed")
        subprocess.run(["echo", "from a child"])

    def embed_images(self, pixels):
        print("pictures", flush=True)
        os.write(1, b"from C\\n")
        return super().embed_images(pixels)

    def embed_texts(self, texts):
        print("texts")
        return super().embed_texts(texts)

class Ragged(Histogram):
    def embed_images(self, pixels):
        return [[1.0], [1.0, 2.0]]

class Dimless:
    def embed_images(self, pixels):
        return pixels

class Blind:
    dim = 3

class Sideless(Histogram):
    side = "large"

class Halved(Histogram):
    side = 128 / 2

class Unmade(Histogram):
    def __init__(self, weights):
        pass
'''
REFUSED = {
    "palette:Missing": "cannot be imported (AttributeError: there is no Missing in ",
    "index:Histogram": f"there is no Histogram in {ROOT / 'index/__init__.py'})",  # not the index.py that is here
    "missing:Histogram": "Set PYTHONPATH to the module's folder, or run the command there",
    "palette:Dimless": "has dim = None: expected a class with `dim`, an int attribute of the class",
    "palette:Blind": "`embed_images`, from (n, side, side, 3) uint8 to (n, dim) float32. Its `side` is 224",
    "palette:Sideless": "palette:Sideless: ",
    "palette:Halved": "palette:Halved: expected whole numbers, got side 64.0 and shortest_edge None",
    "palette:Unmade": "cannot be constructed (TypeError",
    "palette:Short": "embed_images returned an array of float32, (32, 63): expected an array of float32, (32, 64)",
    "palette:Whole": "embed_images returned an array of int64, (32, 64): expected an array of float32",
    "palette:Ragged": "embed_images returned a list that is not an array",
    "palette.Histogram": "--embedder is 'palette.Histogram': expected module:Class, such as palette:Histogram",
    "os:system": "has no embed_images",
}
NOT_NAMED = "palette:Histogram is a Python class, and its code runs only if you name it"
CHANGED = " (the class has changed: its dim, crop or `version`, or without a `version` its module's source code)"
NO_TEXTS = "palette:Histogram knows pictures only (the class has no embed_texts): search by a picture, by the id"


def forget() -> None:
    """Forget the imported module, as in a new process."""
    sys.modules.pop("palette", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with `palette.py` and three plain pictures."""
    write_files(tmp_path / "pictures", PLAIN)
    (tmp_path / "palette.py").write_text("import os\nimport subprocess\n" + EXAMPLE + OTHERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def embed(run: Run, folder: Path) -> Callable[..., Result]:
    """`likeness embed` of the pictures into `c`."""
    return lambda name, *options: run("embed", "pictures", "c", "--embedder", name, *options)


def ids(result: Result) -> list[str]:
    assert result.code == 0, result.err
    return [match["image_id"] for match in json.loads(result.out)["matches"]]


def service(location: str = "c", embedder: str = HISTOGRAM) -> SearchService:
    settings = {"collection": location, "embedder": embedder, "swap_interval_s": 3_600}
    return build_service(ServeSettings.model_validate(settings))


def test_a_histogram_through_the_commands(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    made = embed(HISTOGRAM)
    assert (made.code, f"`likeness search c PICTURE --embedder {HISTOGRAM}`" in made.out) == (0, True)
    assert HISTOGRAM in run("info", "c").out
    (folder / "reddish.png").write_bytes(png((200, 50, 10)))
    search = ("search", "c", "reddish.png", "--format", "json")
    assert ids(run(*search, "--embedder", HISTOGRAM))[0] == "red.png"
    for refused in (run(*search), run(*search, "--model", HISTOGRAM), run("serve", "c", "--local", "--port", 0)):
        assert (refused.code, NOT_NAMED in refused.err) == (2, True), refused.err
    assert ids(run("search", "c", "--text", "red", "--embedder", HISTOGRAM, "--format", "json")) == [
        "red.png"
    ]  # its name
    for unknown in (["a mauve thing"], ["red", "--words", "off"]):
        refused = run("search", "c", "--text", *unknown, "--embedder", HISTOGRAM)
        assert (refused.code, NO_TEXTS in refused.err) == (2, True)
    assert len(ids(run("search", "c", "--like", "red.png", "--format", "json"))) == 2
    assert "already covers" in run("index", "c").out
    refused = run("annotate", "c", "--name", "a", "--label", "x", "--label", "y", "--embedder", HISTOGRAM)
    assert (refused.code, NO_TEXTS in refused.err) == (2, True)

    assert run("reembed", "pictures", "c").code == 0  # nothing to embed, so the class is not needed
    (folder / "pictures/reddish.png").write_bytes(png((200, 50, 10)))
    assert NOT_NAMED in run("reembed", "pictures", "c").err
    (folder / "job.yaml").write_text(f"source: pictures\ncollection: c\nembedder: {HISTOGRAM}\n")
    report = json.loads(run("reembed", "--spec", "job.yaml", "--format", "json").out)
    assert (report["embedded"], report["unchanged"]) == (1, 3)
    assert ids(run(*search, "--embedder", HISTOGRAM))[:2] == ["red.png", "reddish.png"]  # of one colour, by id


def test_another_class_or_version_is_another_model(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    assert embed(HISTOGRAM).code == 0
    assert (other := embed("palette:Worded").err).endswith("changes the model\n")
    assert ("their vectors cannot be compared" in other, CHANGED in other) == (True, False)
    serving = service()
    forget()
    (folder / "palette.py").write_text(EXAMPLE.replace("dim = 64", "version = 2\n    dim = 64") + OTHERS)
    with closing(serving):  # it keeps the class that it has
        assert serving.search(Query(parts=(Part(data=PLAIN["red.png"]),), options={"k": 1})).matches
        assert f"{CHANGED}: their vectors cannot be compared" in embed(HISTOGRAM).err
        with pytest.raises(OtherModelError, match=f"which made the vectors of the index, got .*{re.escape(CHANGED)}: "):
            service()
        colour = ["annotate", "c", "--name", "colour", "--label", "red", "--label", "blue", "--embedder", HISTOGRAM]
        assert f"{CHANGED}; restore it, or" in run(*colour).err
        with pytest.raises(ModelError, match=NOT_NAMED):
            service(embedder="palette:Worded")
        report = json.loads(run("reembed", "pictures", "c", "--embedder", HISTOGRAM, "--format", "json").out)
        assert report["embedded"] == 3
        assert json.loads(run("reembed", "pictures", "c", "--format", "json").out)["embedded"] == 0
        serving.live.refresh()
        assert serving.live.failure is None  # the class was imported anew
    (folder / "palette.py").write_text(EXAMPLE.replace("dim = 64", "version = 2\n    dim = 64") + OTHERS + "# other\n")
    forget()
    assert embed(HISTOGRAM).code == 0  # with a version, the rest of the module may change
    assert run("embed", "pictures", "c", "--model", "demo").code == 2


def test_a_histogram_is_served(embed: Callable[..., Result], folder: Path) -> None:
    assert embed(HISTOGRAM).code == 0
    with pytest.raises(ModelError, match=NOT_NAMED):
        service(embedder="")
    with pytest.raises(ModelError, match=r"expected module:Class.*on Python's path or in .*Set PYTHONPATH"):
        service(embedder="elsewhere:Histogram")
    serving = service()
    with closing(serving), TestClient(create_app(serving)) as client:
        assert client.get("/readyz").status_code == 200
        assert client.get("/index").json()["model"]["id"] == HISTOGRAM
        found = client.post("/search", files={"image": PLAIN["blue.png"]}).json()
        assert found["matches"][0]["image_id"] == "blue.png"
        assert found["matches"][0]["score"] == pytest.approx(1)
        refused = client.post("/search", json={"queries": [{"id": "red.png"}, {"text": "red"}]})
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:likeness:problem:text-not-supported")
        assert NO_TEXTS in refused.json()["detail"]


def test_a_histogram_in_a_notebook(embed: Callable[..., Result], folder: Path) -> None:
    assert embed(HISTOGRAM).code == 0
    with Likeness.open("c", embedder=HISTOGRAM) as likeness:
        assert next(iter(likeness.search(folder / "pictures/green.png"))).image_id == "green.png"
        with pytest.raises(TextNotSupported, match=re.escape(NO_TEXTS)):
            likeness.search("a green thing", words="off")
        assert [match.image_id for match in likeness.search("a green thing")] == ["green.png"]
    with Likeness.open("c") as likeness:
        assert len(likeness.search(id="red.png").matches) == 2
        with pytest.raises(ModelError, match=f"{NOT_NAMED}.*in Python embedder="):
            likeness.search(folder / "pictures/green.png")
    wrong: Any
    error: type[Exception]
    for wrong, error, message in (
        (ModelSource, TypeError, "got embedder <class .*: expected the name of a class, such as"),
        ("", ModelError, f"got embedder '': expected '{HISTOGRAM}', as the index has vectors of {HISTOGRAM}"),
        ("palette:Worded", ModelError, f"got embedder 'palette:Worded': expected '{HISTOGRAM}', as the index"),
    ):
        with pytest.raises(error, match=message):
            Likeness.open("c", embedder=wrong)


def test_a_class_with_embed_texts_searches_by_words(run: Run, embed: Callable[..., Result]) -> None:
    assert embed("palette:Worded").code == 0
    named = ("--embedder", "palette:Worded")
    assert ids(run("search", "c", "--text", "blue", "--format", "json", *named))[0] == "blue.png"
    assert "returned a vector of zeros for 'mauve'" in run("search", "c", "--text", "mauve", *named).err
    labels = ("--label", "red", "--label", "green", "--template", "{}")
    failed = run("annotate", "c", "--name", "colour", *labels, *named)
    assert "returned a vector of zeros for 'airport'" in failed.err  # one of the words to calibrate with
    assert NOT_NAMED.replace(HISTOGRAM, "palette:Worded") in run("annotate", "c", "--name", "colour", *labels).err
    with pytest.raises(ModelError, match="expected a sequence of texts, got one text"):
        load_embedder(find_model("palette:Worded", allowed=["palette:Worded"])).embed_texts("red")


def test_a_picture_without_a_vector_is_a_reject(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    (folder / "pictures/black.png").write_bytes(png((0, 0, 0)))
    assert embed("palette:Picky", "--max-reject-rate", 1).code == 0
    rejects = {row["image_id"]: row for row in list_rejects(Collection.open("c"))}
    assert {name: (row["error_stage"], row["error_reason"]) for name, row in rejects.items()} == {
        "green.png": ("embed", "embedder_failed"),
        "blue.png": ("embed", "no_direction"),
        "black.png": ("embed", "no_direction"),
    }
    assert rejects["green.png"]["error_message"] == "palette:Picky failed (ValueError: unlucky ?)"
    assert rejects["blue.png"]["error_message"].endswith("a vector with values that are not finite")
    assert rejects["black.png"]["error_message"].endswith("a vector of zeros")
    assert run("reembed", "pictures", "c", "--max-reject-rate", 1).code == 0  # the rejects are final
    with closing(service(embedder="palette:Picky")) as serving:
        serving.live.warm_up()
        with pytest.raises(UnusableImage, match="the model has no vector for this picture") as raised:
            serving.search(Query(parts=(Part(data=PLAIN["green.png"]),), options={"k": 1}))
        assert "unlucky" in str(raised.value.__cause__)  # for the log, and in notebooks


def test_prints_of_a_class_go_to_stderr(folder: Path) -> None:
    own = ("--embedder", "palette:Chatty")
    printed = python("-m", "likeness", "reembed", "pictures", "c", *own, "--format", "json", folder=folder)
    assert json.loads(printed.stdout)["outcome"] == "succeeded", printed.stderr
    assert {"constructed", "from a child", "pictures", "from C"} <= set(printed.stderr.splitlines())
    printed = python("-m", "likeness", "search", "c", "--text", "red", *own, "--format", "json", folder=folder)
    assert json.loads(printed.stdout)["matches"][0]["image_id"] == "red.png"
    assert {"constructed", "from a child", "texts"} <= set(printed.stderr.splitlines())


def test_a_class_that_fails_on_everything_stops_the_job(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    for number in range(8):
        Image.new("RGB", (40, 40), (number * 30, 10, 10)).save(folder / f"pictures/{number}.png")
    stopped = embed("palette:Broken")
    assert stopped.code == 2
    assert "none of 11 pictures has a vector, the last one because palette:Broken failed (RuntimeError" in stopped.err


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_is_not_an_embedder_is_refused(embed: Callable[..., Result], name: str) -> None:
    refused = embed(name)
    assert (refused.code, REFUSED[name] in refused.err) == (2, True), refused.err


def test_embedder_excludes_model_and_revision(run: Run, embed: Callable[..., Result]) -> None:
    assert "--embedder replaces the model: expected no model" in embed(HISTOGRAM, "--model", "demo").err
    assert "expected no revision" in embed(HISTOGRAM, "--revision", "main").err


def test_a_server_follows_to_a_class_and_back(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    """In several collections. The classes that it may import do not decide which model answers."""
    assert run("embed", "pictures", "plain", "--model", "demo").code == 0
    assert embed(HISTOGRAM).code == 0
    settings = {"collection": "plain", "more_collections": "c", "embedder": f"palette:Worded,{HISTOGRAM}"}
    collections = build_collections(ServeSettings.model_validate({**settings, "swap_interval_s": 3_600}))
    with TestClient(create_app(collections)) as client:

        def models() -> list[str]:
            """The models of both, each of which answers."""
            for service in collections.open_services.values():
                service.live.refresh()
                assert service.live.failure is None
            found = []
            for name in ("plain", "c"):
                answer = client.post(f"/collections/{name}/search", files={"image": PLAIN["blue.png"]}).json()
                assert answer["matches"][0]["image_id"] == "blue.png"
                found.append(answer["model"]["id"])
            return found

        demo, reembed = "demo", ("reembed", "pictures")
        assert models() == [demo, HISTOGRAM]
        assert run(*reembed, "plain", "--embedder", HISTOGRAM).code == 0
        assert run(*reembed, "c", "--model", "demo").code == 0
        assert models() == [HISTOGRAM, demo]
        assert run(*reembed, "c", "--embedder", "palette:Worded").code == 0
        assert models() == [HISTOGRAM, "palette:Worded"]


def test_vectors_of_a_class_are_imported(run: Run, embed: Callable[..., Result], folder: Path) -> None:
    vectors = np.eye(64, dtype=np.float32)[[48, 12, 3]]
    np.save(folder / "vectors.npy", vectors)
    assert run("import", "vectors.npy", "c", "--embedder", HISTOGRAM).code == 0
    assert ids(run("search", "c", "pictures/red.png", "--embedder", HISTOGRAM, "--format", "json"))[0] == "0"


@pytest.mark.ray
def test_a_histogram_on_ray(folder: Path, cluster: int) -> None:
    """Actors and replicas find the class by its name."""
    from ray import serve as ray_serve

    load = ModelSource(model=HISTOGRAM, found=find_model(HISTOGRAM, allowed=[HISTOGRAM]))
    embed_on_ray(folder / "pictures", folder / "c", load=load, like=load())
    build_index(Collection.open("c"))
    settings = ServeSettings(collection="c", embedder=HISTOGRAM, port=cluster, embedders=1, num_cpus=0.5)
    with httpx.Client(base_url=serve(settings, blocking=False), timeout=30) as client:
        found = client.post("/search", files={"image": PLAIN["blue.png"]}).json()["matches"][0]
        assert (found["image_id"], found["score"]) == ("blue.png", pytest.approx(1))
        refused = client.post("/search", json={"text": "mauve"})
        assert (refused.status_code, NO_TEXTS in refused.json()["detail"]) == (422, True)
    ray_serve.shutdown()  # type: ignore[no-untyped-call]  # the tests of jobs that come next need the CPUs
