"""A rollback is permanent: a rebuild of the same rows goes live only by `promote`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.errors import RolledBackError
from index.versions.promotion import list_versions, promote, rollback
from index.versions.servable import collection_model
from likeness.cli.app import app
from tests.support.collections.hand_made import MODEL, add_run, add_version, rows, unit_vectors

IDS = [f"{number:02d}" for number in range(20)]
OTHER = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=4)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 2 has one image more than version 1 and was rolled back."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("template")))
    add_version(collection, rows(IDS, unit_vectors(20)))
    add_version(collection, rows(["new"], unit_vectors(1, seed=1)))
    rollback(collection)
    return Path(collection.location)


def rolled_back(collection: Collection) -> list[str]:
    return [version.name for version in list_versions(collection) if version.rolled_back]


def test_with_nothing_new_nothing_is_built(collection: Collection) -> None:
    message = (
        "000002 has these images and was rolled back, so it does not replace 000001: .*`likeness promote .* 000002`"
    )
    with pytest.raises(RolledBackError, match=message):
        build_index(collection)
    assert (collection.versions(), collection.current()) == (["000001", "000002"], "000001")
    promote(collection, "000002")
    assert build_index(collection).version == "000002"


@pytest.mark.parametrize("how", ["compact", "other settings", "damaged"])
def test_the_same_rows_built_again_are_not_live(collection: Collection, how: str) -> None:
    settings = IndexSettings(target_recall=0.9) if how == "other settings" else None
    if how == "damaged":
        (Path(collection.location) / "index/000002/queries.arrow").unlink()
    for _ in range(2):
        with pytest.raises(RolledBackError, match=r"`likeness promote .* 000003`"):
            build_index(collection, settings, rebuild=how == "compact" and "000003" not in collection.versions())
        assert (collection.versions(), collection.current()) == (["000001", "000002", "000003"], "000001")
    assert rolled_back(collection) == ["000002", "000003"]
    promote(collection, "000003")
    # Once these rows are live again, they may be rebuilt.
    assert build_index(collection, rebuild=True).version == collection.current() == "000004"


def test_what_repeats_the_chosen_version_goes_live_after_an_undone_rollback(collection: Collection) -> None:
    for repeated in ("000002, which was", "000003 and 000002, which were"):
        with pytest.raises(RolledBackError, match=f"because it repeats {repeated} rolled back"):
            build_index(collection, rebuild=True)
    listed = {version.name: version.was_live for version in list_versions(collection)}
    assert listed == {"000001": True, "000002": True, "000003": False, "000004": False}
    result = CliRunner().invoke(app, ["versions", collection.location])
    assert [line.split()[1:3] for line in result.output.splitlines()[-3:]] == [
        ["rolled", "back"],
        *[["not", "live"]] * 2,
    ]
    promote(collection, "000002")
    assert rolled_back(collection) == []
    assert build_index(collection, rebuild=True).version == collection.current() == "000005"
    # A version that was live and rolled back is another matter.
    promote(collection, "000002")
    with pytest.raises(RolledBackError, match="repeats 000005, which was rolled back"):
        build_index(collection, rebuild=True)


def test_new_images_of_the_same_model_go_live(collection: Collection) -> None:
    add_run(collection, rows(["newer"], unit_vectors(1, seed=2)))
    assert build_index(collection).ntotal == 22
    assert (collection.current(), rolled_back(collection)) == ("000003", ["000002"])


def test_promoting_an_older_version_is_a_rollback_too(collection: Collection) -> None:
    promote(collection, "000002")
    promote(collection, "000001")
    assert rolled_back(collection) == ["000002"]
    with pytest.raises(RolledBackError):
        build_index(collection)
    assert collection.current() == "000001"


def test_an_unreadable_version_that_was_rolled_back_may_be_the_same(collection: Collection) -> None:
    (Path(collection.location) / "index/000002/manifest.json").write_text("{}")
    with pytest.raises(RolledBackError, match="000003 was built but is not live, because it may repeat 000002"):
        build_index(collection)
    assert collection.current() == "000001"
    # Rows that are new since the rollback are not a repetition.
    add_run(collection, rows(["newer"], unit_vectors(1, seed=2)))
    assert build_index(collection).ntotal == 22
    assert (collection.current(), rolled_back(collection)) == ("000004", ["000002", "000003"])


def test_adding_a_column_to_the_older_version_brings_nothing_back(collection: Collection) -> None:
    add_run(annotation_log(collection, "size"), rows(IDS, unit_vectors(20), metadata={"size": [1] * 20}))
    before = collection.read_version("000001")
    for _ in range(2):
        added = build_index(collection, runs=[run for run in collection.runs() if run.run_id in before.runs])
        assert (added.version, added.runs, added.annotates) == ("000003", before.runs, "000001")
        with pytest.raises(RolledBackError, match="rolled back"):
            build_index(collection)
        assert collection.current() == "000003"


@pytest.mark.parametrize("mark", [b"\xff", b"2001-01-01T00:00:00", b"0001-01-01T00:00:00+23:59"])
def test_a_rollback_whose_time_cannot_be_read_counts_as_of_now(collection: Collection, mark: bytes) -> None:
    add_run(collection, rows(["newer"], unit_vectors(1, seed=2)))
    version = Path(collection.location) / "index/000002"
    (version / "manifest.json").write_text("{}")
    (version / "rolled_back").write_bytes(mark)
    assert rolled_back(collection) == ["000002"]
    if mark.startswith(b"2001"):
        assert build_index(collection).version == collection.current() == "000003"
        return
    with pytest.raises(RolledBackError, match="may repeat 000002"):
        build_index(collection)
    assert collection.current() == "000001"


def test_a_model_that_was_rolled_back_is_not_that_of_the_collection(collection: Collection) -> None:
    promote(collection, "000002")
    add_run(collection, rows([*IDS, "new"], unit_vectors(21, dim=4)), model=OTHER)
    assert build_index(collection).model == OTHER
    assert collection_model(collection.snapshot()) == OTHER
    rollback(collection)
    assert collection_model(collection.snapshot()) == MODEL
    for rebuild, version in ((False, "000003"), (True, "000004")):
        with pytest.raises(RolledBackError, match=f"`likeness promote .* {version}`"):
            build_index(collection, rebuild=rebuild)
        assert collection.current() == "000002"
    # New images with this model change nothing.
    add_run(collection, rows(["newer"], unit_vectors(1, dim=4)), model=OTHER)
    with pytest.raises(RolledBackError, match=f"has the model {OTHER.id}"):
        build_index(collection)
    assert collection.current() == "000002"


def test_a_model_that_is_used_again_after_another_goes_live(collection: Collection) -> None:
    for model, dim in ((OTHER, 4), (MODEL, 8), (OTHER, 4)):
        add_run(collection, rows([*IDS, "new", "newer"], unit_vectors(22, dim=dim)), model=model)
        assert build_index(collection).model == collection_model(collection.snapshot()) == model
        if model == OTHER and collection.current() == "000003":
            rollback(collection)
    assert collection.current() == "000005"


def test_the_commands_say_what_was_done(collection: Collection) -> None:
    run = CliRunner()
    for command, message in (("index", "000002 has these images"), ("compact", "000003 was built but is not live")):
        result = run.invoke(app, [command, collection.location])
        assert (result.exit_code, message in result.output) == (0, True), result.output
        assert "likeness promote" in result.output
        assert collection.current() == "000001"
