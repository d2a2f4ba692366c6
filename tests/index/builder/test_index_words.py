"""The files of words of a version: which are written, and which are taken over."""

from pathlib import Path
from typing import Any

import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import VersionManifest
from index.errors import DamagedVersionError
from index.search import Searcher
from index.words.text import words_of
from tests.support.collections.every_file import edit_record, seal
from tests.support.collections.hand_made import MODEL, add_run, add_version, metadata_of, rows, unit_vectors

IDS = [f"{number:03d}" for number in range(300)]
PREDICTOR = MODEL.model_copy(update={"id": "captions", "fingerprint": "c" * 64})


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("words.block", "words.word_index", "words.ranked", "builder.columns", "builder.segment_rows"):
        monkeypatch.setattr(f"index.{module}.BLOCK_ROWS", 64)


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts whose words are looked for."""
    seen: list[str] = []

    def recorded(text: str) -> list[str]:
        seen.append(text)
        return words_of(text)

    monkeypatch.setattr("index.words.block.words_of", recorded)
    return seen


@pytest.fixture
def collection(tmp_path: Path, request: pytest.FixtureRequest) -> Collection:
    """In a folder, or with the parameter "bucket" in a bucket."""
    in_bucket = getattr(request, "param", "folder") == "bucket"
    location = request.getfixturevalue("store").address("collection") if in_bucket else str(tmp_path / "collection")
    collection = Collection.create_or_open(location)
    add_version(collection, rows(IDS, unit_vectors(300), metadata={"label": [f"label {each}" for each in IDS]}))
    return collection


def caption(collection: Collection, captions: dict[str, str]) -> VersionManifest:
    """Annotate images, and index them."""
    log = annotation_log(collection, "caption")
    log.storage.create_folder("runs")
    metadata = {"caption": list(captions.values())}
    add_run(log, rows(list(captions), unit_vectors(len(captions)), metadata=metadata), model=PREDICTOR)
    return build_index(collection)


def found(collection: Collection, query: str) -> list[str]:
    """Ids, best first."""
    return [match.image_id for match in Searcher.open(collection).answer(None, 1000, words=query).matches]


@pytest.mark.parametrize("collection", ["folder", "bucket"], indirect=True)
def test_an_update_reads_only_the_texts_of_new_rows(collection: Collection, tokenised: list[str]) -> None:
    caption(collection, {each: f"caption {each}" for each in IDS})
    first = collection.read_version("000002")
    tokenised.clear()
    new = rows(["new", "007"], unit_vectors(2, seed=1), metadata={"label": ["label new", "other"]})
    add_run(collection, new, deletes=["009"])
    second = build_index(collection)
    assert sorted(tokenised) == ["caption 007", "label new", "memory:007", "memory:new", "other"]
    assert second.segments[0].files == first.segments[0].files
    assert second.segments[0].words == first.segments[0].words
    assert found(collection, "new") == ["new"]
    assert found(collection, "009 other") == ["007"]
    assert found(collection, "caption") == [each for each in IDS if each != "009"]


def test_words_of_annotations_follow_their_values(collection: Collection, tokenised: list[str]) -> None:
    tokenised.clear()
    first = caption(collection, {each: f"red {each}" for each in IDS[:200]})
    assert len(tokenised) == 200
    tokenised.clear()
    second = caption(collection, {"199": "blue"})
    assert sorted(tokenised) == ["blue", *(f"red {number}" for number in range(192, 199))]  # one block
    assert second.segments[0].files == first.segments[0].files
    assert found(collection, "blue") == ["199"]
    assert found(collection, "red") == IDS[:199]
    assert metadata_of(collection, {"caption": {"$match": "blue"}}).keys() == {"199"}


def test_a_longer_segment_copies_the_words_of_its_older_rows(tmp_path: Path, tokenised: list[str]) -> None:
    settings = IndexSettings(latency_ms=1e-6, factory="IVF4,Flat", target_recall=0.5)
    collection = Collection.create_or_open(str(tmp_path / "grown"))
    add_version(collection, rows(IDS, metadata={"label": IDS}), settings=settings)
    tokenised.clear()
    more = [f"more {number}" for number in range(60)]
    manifest = add_version(collection, rows(more, unit_vectors(60, seed=1), metadata={"label": more}))
    assert [segment.ntotal for segment in manifest.segments] == [360]
    assert len(tokenised) == 2 * (360 - 256)  # names of files, and labels; four blocks were whole
    assert found(collection, "more") == sorted(more)
    assert found(collection, "255") == ["255"]


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (None, {"uri", "label", "caption"}),
        (("caption", "uri", "none"), {"uri", "caption"}),
        (("label",), {"label"}),
        ((), set()),
    ],
)
def test_a_setting_says_which_columns_have_an_index(
    collection: Collection, caplog: pytest.LogCaptureFixture, words: tuple[str, ...] | None, columns: set[str]
) -> None:
    caption(collection, {"007": "a red star"})
    manifest = build_index(collection, IndexSettings(words=words))
    missing = ["no column of text is called none (--words): there are uri, label"] if "none" in (words or ()) else []
    assert caplog.messages == missing
    assert manifest.settings.words == words
    assert Searcher.open(collection).segments.parts[0].words.columns.keys() == columns
    assert metadata_of(collection, {"caption": {"$match": "star"}}).keys() == {"007"}
    assert found(collection, "star") == (["007"] if "caption" in columns else [])


def test_a_version_of_an_older_release_is_built_anew(collection: Collection) -> None:
    def strip(content: dict[str, Any]) -> None:
        for segment in content["segments"]:
            del segment["files"]["words.arrow"]

    edit_record(Path(collection.location) / "index/000001/manifest.json", strip)
    assert metadata_of(collection, {"label": {"$match": "007"}}).keys() == {"007"}
    assert found(collection, "007") == []
    add_version(collection, rows(["new"]))
    assert found(collection, "007") == ["007"]


@pytest.mark.parametrize("file", ["index/segments/000001-00/words.arrow", "index/000002/words-000001-00.arrow"])
def test_a_damaged_file_of_words_is_named_and_not_taken_over(collection: Collection, file: str) -> None:
    caption(collection, {each: f"caption {each}" for each in IDS})
    path = Path(collection.location) / file
    path.write_bytes(path.read_bytes()[:-200] + b"x" * 200)
    with pytest.raises(DamagedVersionError, match=file):
        Searcher.open(collection)
    add_version(collection, rows(["new"]))
    assert found(collection, "caption") == IDS


def test_files_of_words_that_a_stranger_wrote(collection: Collection) -> None:
    path = Path(collection.location) / "index/segments/000001-00/words.arrow"
    path.write_bytes((path.parent / "ids.arrow").read_bytes())
    seal(Path(collection.location))
    with pytest.raises(DamagedVersionError, match=r"words\.arrow: it has the columns \{'position'"):
        Searcher.open(collection)
