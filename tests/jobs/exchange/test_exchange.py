"""Exports and imports keep the bits of vectors, and unusable vectors become rejects with a reason."""

import datetime as dt
import errno
import io
import json
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.build_service import build_service
from api.explore import Likeness
from api.http.app import create_app
from api.settings import ServeSettings
from embedder.models.checkpoint import DEMO_MODEL
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.merged.sets import MergedRun
from index.collection.records.model_record import ModelRecord
from index.collection.rows import vectors_of
from index.search import Searcher
from jobs.demo.collection import embed_here
from jobs.errors import JobError, OtherModelError, SourceError, TooManyRejectsError, UsageError
from jobs.exchange.export import FILES, export
from jobs.exchange.import_vectors import VectorImport
from tests.support.collections.hand_made import DIM, MODEL, add_run, rows, unit_vectors
from tests.support.collections.rejects_and_checks import list_rejects, read_checks
from tests.support.collections.s3_server import Bucket
from tests.support.collections.small_collection import PLAIN
from tests.support.command_line import Run
from tests.support.listings import write_files
from tests.support.servers.clients import on_this_machine

VECTORS = unit_vectors(40, seed=7)
IDS = [f"{number:02}.jpg" for number in range(40)]


@pytest.fixture
def exported(collection: Collection) -> Collection:
    """Two runs with 41 images, one of them deleted later, and a reject; with columns of several types."""
    stars = pa.array([None, *range(39)], pa.int64())
    day = pa.array([dt.datetime(2026, 11, 23, tzinfo=dt.UTC)] * 40, pa.timestamp("us", "UTC"))
    metadata = {"stars": stars, "label": pa.array(["é;,\t\n"] * 40), "modified": day, "content_hash": pa.array(IDS)}
    metadata["exif_camera"] = pa.array(["Leica M6", *[None] * 39], pa.string())
    metadata |= {"prices": pa.array([None, [], [2.5], *[[1.5, 2.5]] * 37]), "direction": pa.array(VECTORS.tolist())}
    add_run(collection, rows(IDS, VECTORS, metadata=metadata))
    add_run(collection, rows(["late"], unit_vectors(1, seed=1), rejected={"bad": "truncated"}), deletes=["03.jpg"])
    return collection


def data_of(content: Any) -> bytes:
    """The .npy file of an array, the Parquet file of a table or columns; bytes and text as they are."""
    if isinstance(content, bytes | str):
        return content.encode() if isinstance(content, str) else content
    data = io.BytesIO()
    if isinstance(content, np.ndarray):
        np.save(data, content)
    else:
        pq.write_table(content if isinstance(content, pa.Table) else pa.table(content), data, row_group_size=3)
    return data.getvalue()


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files with the `data_of` these contents."""
    return write_files(folder, {name: data_of(content) for name, content in files.items()})


def clip_retrieval(*parts: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    """The files of a clip-retrieval folder with these vectors and columns."""
    vectors = {f"img_emb/img_emb_{number}.npy": part[0] for number, part in enumerate(parts)}
    return vectors | {f"metadata/metadata_{number}.parquet": part[1] for number, part in enumerate(parts)}


def vector_import(source: Path | str, to: str = "imported", **options: Any) -> VectorImport:
    """An import into a collection beside its source."""
    return VectorImport(source=str(source), collection=str(Path(source).parent / to), **options)


def import_vectors(source: Path | str, **options: Any) -> Collection:
    job = vector_import(source, **options)
    job.run()
    return Collection.open(job.collection)


def import_table(folder: Path, table: Any, **options: Any) -> Collection:
    """Import a Parquet file with this table or these columns."""
    return import_vectors(write(folder, {"list.parquet": table}) / "list.parquet", **options)


@pytest.mark.parametrize("form", FILES)
def test_a_round_trip_keeps_rows_and_search_results(exported: Collection, tmp_path: Path, form: Any) -> None:
    assert export(exported, str(tmp_path / "out"), form) == 40
    again = import_vectors(tmp_path / "out")
    before = exported.live_rows()
    kept = before.filter(before["embedding"].is_valid())
    after = again.live_rows()
    assert after.select(sorted(after.column_names)).equals(kept.select(sorted(after.column_names)))
    assert set(after.column_names) == set(kept.column_names)
    assert (again.runs()[0].model, again.runs()[0].exif) == (MODEL, True)
    for each in (exported, again):
        build_index(each)
    one, other = Searcher.open(exported), Searcher.open(again)
    queries = unit_vectors(20, seed=3)
    assert one.search(queries, 10) == other.search(queries, 10)


def test_columns_of_annotations_are_exported_and_do_not_come_back(
    run: Run, exported: Collection, tmp_path: Path
) -> None:
    same, other = IDS[5], IDS[6]  # the content of `other` has changed since
    metadata = {"mood": ["calm", "wild"], "content_hash": [same, "changed"]}
    add_run(annotation_log(exported, "mood"), rows([same, other], metadata=metadata))
    export(exported, str(tmp_path / "out"), "parquet")
    table = pq.read_table(tmp_path / "out" / "rows.parquet")
    assert table.select(["image_id", "mood"]).drop_null().to_pylist() == [{"image_id": same, "mood": "calm"}]
    pq.write_table(table.append_column("moody", table["mood"]), tmp_path / "x.parquet")
    done = run("import", tmp_path / "x.parquet", exported.location, "--no-index")
    assert "columns of the collection's annotations are left out (`mood`): x.parquet" in done.out + done.err
    columns = exported.live_rows().column_names
    assert ("mood" in columns, "moody" in columns) == (False, True)


def stop(*_: int) -> None:
    """The progress of a job that is interrupted."""
    raise KeyboardInterrupt


def test_an_export_is_complete_or_absent(exported: Collection, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export(exported, str(tmp_path / "out"), "npy", stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["collection"]
    (tmp_path / "a mount").mkdir()
    same = (tmp_path / "a mount").stat().st_ino
    export(exported, (tmp_path / "a mount").as_uri(), "npy")
    assert sorted(path.name for path in (tmp_path / "a mount").iterdir()) == ["rows.parquet", "vectors.npy"]
    assert (tmp_path / "a mount").stat().st_ino == same
    for name in ("a new folder", "another mount"):  # a killed export is started again
        target = tmp_path / name
        if name == "another mount":
            target.mkdir()
        with patch("shutil.rmtree"), pytest.raises(KeyboardInterrupt):
            export(exported, str(target), "npy", stop)
        export(exported, str(target), "npy")
        assert sorted(path.name for path in target.iterdir()) == ["rows.parquet", "vectors.npy"]
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of an open file: it names no place
    with patch("pyarrow.parquet.ParquetWriter.write_table", side_effect=full), pytest.raises(OSError, match=r"/full'$"):
        export(exported, str(tmp_path / "full"), "npy")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("a mount", "link"):
        with pytest.raises(UsageError, match="already exists: expected a new or an empty folder"):
            export(exported, str(tmp_path / name), "npy")
    for address in ("s3://bucket/out", "http://host/out"):
        with pytest.raises(UsageError, match="is not on this machine: expected a local folder"):
            export(exported, address, "npy")


def test_a_column_that_clip_retrieval_needs_is_renamed(collection: Collection, tmp_path: Path) -> None:
    names = ("image_path", "source_image_path")
    add_run(collection, rows(["a"], metadata={name: pa.array([name]) for name in names}))
    export(collection, str(tmp_path / "out"), "clip-retrieval")
    vectors = np.load(tmp_path / "out/img_emb/img_emb_0.npy")  # as other tools read them
    assert (vectors.shape, vectors.dtype) == ((1, DIM), np.float32)
    (row,) = pq.read_table(tmp_path / "out/metadata/metadata_0.parquet").to_pylist()
    assert [row[name] for name in (*names, "source_source_image_path")] == ["memory:a", names[1], names[0]]


def test_a_collection_is_not_a_source_of_an_import(exported: Collection) -> None:
    with pytest.raises(SourceError, match="is a collection: `likeness export` it first"):
        import_vectors(exported.location)


# Sources


def test_vectors_without_an_address_are_shown_without_a_picture(run: Run, tmp_path: Path) -> None:
    """Beside others that have one: in the terminal, over HTTP and in a notebook."""
    path = str(write_files(tmp_path / "p", PLAIN) / "red.png")
    source, collection = tmp_path / "list.parquet", str(tmp_path / "c")
    table = {"id": ["a", "b", "c"], "uri": [path, None, path], "embedding": unit_vectors(3).tolist()}
    pq.write_table(pa.table(table), source)
    assert run("import", source, collection).code == 0
    header, *lines = run("search", collection, "--like", "c").out.splitlines()
    column = header.split("\t").index("uri")
    assert sorted(line.split("\t")[column] for line in lines) == sorted([path, "–"])
    with Likeness.open(collection) as likeness:
        shown = likeness.search(id="c")
        assert {match.image_id: match.uri for match in shown} == {"a": path, "b": None}
        assert "no_uri" in shown._repr_html_()
    service = build_service(ServeSettings(collection=collection))
    with closing(service.decoders), on_this_machine(create_app(service)) as client:
        for query in ("", "&size=64"):
            answer = client.get(f"/picture?id=b{query}")
            assert (answer.status_code, answer.json()["reason"]) == (502, "no_uri")
        assert client.get("/image?id=b").json()["uri"] is None


def test_clip_retrieval_folders(tmp_path: Path) -> None:
    """As clip-retrieval writes them: float16, `image_path` as the id, and img2dataset's columns."""
    parts = [
        (unit_vectors(2, seed=n).astype(np.float16), {"image_path": [f"{n}a", f"{n}b"], "url": [f"http://h/{n}", None]})
        for n in range(11)
    ]
    found = import_vectors(write(tmp_path / "out", clip_retrieval(*parts))).live_rows()
    assert found.num_rows == 22
    assert found["uri"].to_pylist()[:2] == ["http://h/0", None]
    order = ["0a", "0b", "10a", "10b", "1a"]
    assert found["image_id"].to_pylist()[:5] == order
    vectors = np.stack([np.array(vector) for vector in found["embedding"].to_pylist()])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[2:4], unit_vectors(2, seed=10), atol=1e-3)


IDS_BESIDE: dict[str, tuple[Any, list[str]]] = {  # a file's name: what it holds, the ids
    "": (None, ["0", "1", "2"]),
    "ids.txt": ("\ufeffc\r\na\r\nb\u2028\n", ["c", "a", "b\u2028"]),
    "ids.npy": (np.array(["c", "a", "b"]), ["c", "a", "b"]),
    "numbers.npy": (np.array([12, 10, 11]), ["12", "10", "11"]),
    "ids.parquet": (pa.table({"id": ["c", "a", "b"], "stars": [3, 1, 2]}), ["c", "a", "b"]),
}


@pytest.mark.parametrize("name", IDS_BESIDE)
def test_ids_of_an_array_are_in_a_second_file_or_are_row_numbers(tmp_path: Path, name: str) -> None:
    content, ids = IDS_BESIDE[name]
    write(tmp_path, {"vectors.npy": 3 * VECTORS[:3], **({name: content} if name else {})})
    job = vector_import(tmp_path / "vectors.npy", ids=str(tmp_path / name) if name else None)
    job.run()
    found = {row["image_id"]: row for row in Collection.open(job.collection).live_rows().to_pylist()}
    assert found.keys() == set(ids)
    np.testing.assert_allclose([found[image_id]["embedding"] for image_id in ids], VECTORS[:3], atol=1e-7)
    assert job.normalised == 3
    assert [found[image_id].get("stars") for image_id in ids] == ([3, 1, 2] if "parquet" in name else [None] * 3)


@pytest.mark.parametrize(("form", "name"), [("npy", "vectors.npy"), ("clip-retrieval", "img_emb/img_emb_0.npy")])
def test_the_array_of_an_export_has_its_rows_if_it_is_given_itself(
    exported: Collection, tmp_path: Path, form: Any, name: str
) -> None:
    export(exported, str(tmp_path / "out"), form)
    found, whole = import_vectors(tmp_path / "out" / name, to=str(tmp_path / "c")), import_vectors(tmp_path / "out")
    assert found.live_rows().equals(whole.live_rows())
    assert found.runs()[0].model == whole.runs()[0].model


UNCERTAIN: dict[str, tuple[dict[str, Any], bool]] = {  # files beside an array of three vectors, and whether ids are its
    "its rows": ({"rows.parquet": {"id": IDS[:3]}}, True),
    "of another number": ({"rows.parquet": {"id": IDS[:4]}}, False),
    "two files of rows": ({"a.parquet": {"id": IDS[:3]}, "b.parquet": {"id": IDS[:3]}}, False),
    "two arrays": ({"rows.parquet": {"id": IDS[:3]}, "other.npy": VECTORS[:3]}, False),
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_rows_beside_an_array_count_if_they_are_certainly_its_own(run: Run, tmp_path: Path, case: str) -> None:
    files, is_certain = UNCERTAIN[case]
    write(tmp_path, {"vectors.npy": VECTORS[:3], **files})
    done = run("import", tmp_path / "vectors.npy", tmp_path / "c", "--no-index")
    tables = ", ".join(name for name in files if name.endswith("parquet"))
    note = f"it is not certain that these files have them: name one with --ids: {tables}"
    assert (note in done.out + done.err) is not is_certain
    ids = Collection.open(str(tmp_path / "c")).live_rows()["image_id"].to_pylist()
    assert ids == (IDS[:3] if is_certain else ["0", "1", "2"])


def pictures(count: int) -> "pa.Array[Any]":
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": b"\xff\xd8\xff picture", "path": None}] * count, kind)


def test_a_hugging_face_dataset_keeps_its_pictures_and_plain_columns(tmp_path: Path) -> None:
    columns = {
        **{
            "sha256": pa.array([b"\xff" * 32] * 2, pa.binary(32)),
            "md5": [b"\xff" * 16] * 2,
            "image": pictures(2),
            "width": [1, 2],
            "text_vector": VECTORS[2:4].tolist(),
        },
        "image_vector": [vector.astype(np.float64).tolist() for vector in VECTORS[:2]],
        "__index_level_0__": [4, 7],
    }
    write(tmp_path, {"train.parquet": columns})
    with pytest.raises(SourceError, match=r"several columns of vectors \(text_vector, image_vector\): name one with"):
        import_vectors(tmp_path / "train.parquet")
    job = vector_import(tmp_path / "train.parquet", embedding_column="image_vector")
    job.run()
    assert job.notes == {
        "columns of bytes are left out (`sha256`, `md5`)": ["train.parquet"],
        "columns of other vectors are left out (`text_vector`)": ["train.parquet"],
        "columns of an unnamed index of pandas are left out (`__index_level_0__`)": ["train.parquet"],
        "column `width` is stored as `source_width`, as each image has a `width` of its own": [],
    }
    found = Collection.open(job.collection).live_rows()
    assert found["image_id"].to_pylist() == ["train.parquet#0", "train.parquet#1"]
    assert found["uri"].to_pylist() == [f"{tmp_path}/train.parquet#row={row}&column=image" for row in range(2)]
    assert found["source_width"].to_pylist() == [1, 2]  # it may be the width before or after resizing
    assert not {"text_vector", "__index_level_0__"} & {*found.column_names}
    assert found["embedding"].to_pylist() == VECTORS[:2].tolist()


FLOATS = pa.list_(pa.float32())
LIST_COLUMNS: dict[str, tuple[Any, bool]] = {  # a column beside four vectors of eight dimensions, and whether it stays
    "boxes": (pa.array([[0.0, 0.0, 4.0, 3.0]] * 4, pa.list_(pa.float32(), 4)), True),
    "of several lengths": (pa.array([[0.5], None, [], [1.5, 2.5]], FLOATS), True),
    "longer than vectors": (pa.array([[0.5] * 9] * 4, pa.list_(pa.float64())), True),
    "half floats": (pa.array([[0.5]] * 4, pa.list_(pa.float16())), True),
    "some with nulls": (pa.array([[None] * 8, *[[0.5] * 8] * 3], FLOATS), True),
    "vectors": (pa.array(VECTORS[4:8].tolist(), FLOATS), False),
    "vectors, some missing": (pa.array([None, *VECTORS[4:7].tolist()], FLOATS), False),
}


@pytest.mark.parametrize("beside", [True, False], ids=["an array", "Parquet"])
def test_lists_of_floats_stay_unless_they_may_be_vectors(run: Run, tmp_path: Path, beside: bool) -> None:
    columns: dict[str, Any] = {"id": IDS[:4]} | {f"found.{kind}": values for kind, (values, _) in LIST_COLUMNS.items()}
    in_column, in_array = ({}, {"s/vectors.npy": FOUR}) if beside else ({"embedding": LISTS}, {})
    write(tmp_path, {"s/rows.parquet": columns | in_column, **in_array})
    done = run("import", tmp_path / "s", tmp_path / "c", "--no-index")
    vectors = ", ".join(f"`found.{kind}`" for kind, (_, stays) in LIST_COLUMNS.items() if not stays)
    assert f"columns of other vectors are left out ({vectors}): rows.parquet" in done.out + done.err
    found = Collection.open(str(tmp_path / "c")).live_rows()
    kept = {name: found[name].to_pylist() for name in found.column_names if name.startswith("found.")}
    assert kept == {f"found.{kind}": values.to_pylist() for kind, (values, stays) in LIST_COLUMNS.items() if stays}


def test_paths_are_relative_to_the_files_folder(tmp_path: Path) -> None:
    urls = ["pics/b.png", "/a.png", "http://h/c.png", " "]
    found = import_table(tmp_path, {"id": IDS[:4], "url": urls, "embedding": LISTS}).live_rows()
    assert found["uri"].to_pylist() == [f"{tmp_path}/pics/b.png", "/a.png", "http://h/c.png", None]


def test_a_column_may_begin_with_nulls(tmp_path: Path) -> None:
    lists = pa.array([None] * 5_000 + LISTS, pa.list_(pa.float32()))
    found = import_table(tmp_path, {"embedding": lists}, max_reject_rate=1).live_rows(["embedding"])
    assert found["embedding"].drop_null().to_pylist() == LISTS


def test_a_bucket_is_a_source_too(store: Bucket, tmp_path: Path) -> None:
    parts = [(VECTORS[:3], {"image_path": IDS[:3]}), (VECTORS[3:], {"image_path": IDS[3:]})]
    for name, content in clip_retrieval(*parts).items():
        store.put(f"made/{name}", data_of(content))
    made, part = (str(tmp_path / name) for name in ("made", "part"))
    VectorImport(source=f"s3://{store.name}/made", collection=made).run()
    assert Collection.open(made).live_rows(["embedding"])["embedding"].to_pylist() == VECTORS.tolist()
    VectorImport(source=f"s3://{store.name}/made/img_emb/img_emb_1.npy", collection=part).run()
    assert Collection.open(part).live_rows(["image_id"])["image_id"].to_pylist() == IDS[3:]


# Unusable rows

GOOD = VECTORS[0].tolist()
BAD_ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("nan", {"embedding": [*GOOD[1:], np.nan]}, "not_finite", "expected finite float32 values, but value 7 is nan"),
    ("inf", {"embedding": [float("inf"), *GOOD[1:]]}, "not_finite", "value 0 is inf"),
    ("-inf", {"embedding": [*GOOD[1:], -float("inf")]}, "not_finite", "value 7 is -inf"),
    ("too large for float32", {"embedding": [1e300, *GOOD[1:]]}, "not_finite", "value 0 is 1e+300"),
    ("zero", {"embedding": [0.0] * DIM}, "zero_vector", "expected a direction, got a vector of norm 0"),
    ("all but zero", {"embedding": [1e-30] * DIM}, "zero_vector", "expected a direction, got a vector of norm 2.8"),
    ("short", {"embedding": GOOD[1:]}, "wrong_length", "expected a vector of 8 numbers, got 7"),
    ("long", {"embedding": [*GOOD, 1.0]}, "wrong_length", "expected a vector of 8 numbers, got 9"),
    ("empty", {"embedding": []}, "wrong_length", "expected a vector of 8 numbers, got 0"),
    ("null", {"embedding": None}, "no_vector", "expected a vector of 8 numbers, got null"),
    ("null value", {"embedding": [None, *[2.0] * 7]}, "null_value", "expected 8 numbers, but some are null"),
    ("no id", {"id": None}, "no_id", "expected an id, got none"),
    ("empty id", {"id": " "}, "no_id", "expected an id, got none"),
    (
        "repeated id",
        {"id": "04.jpg", "embedding": [2.0] * DIM},
        "duplicate_id",
        "unique id, but '04.jpg' is already that of list.parquet#row=4",
    ),
]


def test_each_unusable_row_becomes_a_reject(tmp_path: Path) -> None:
    """They are not counted among the vectors that were normalised."""
    listed = [{"id": name, "embedding": vector.tolist()} for name, vector in zip(IDS, VECTORS, strict=True)]
    numbers = range(20, 20 + len(BAD_ROWS))
    for number, (_, change, *_) in zip(numbers, BAD_ROWS, strict=True):
        listed[number] |= change
    listed[8]["embedding"] = (2 * VECTORS[8]).tolist()
    kinds = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float64())})
    write(tmp_path, {"list.parquet": pa.Table.from_pylist(listed, kinds)})
    job = vector_import(tmp_path / "list.parquet", max_reject_rate=1)
    assert (job.run().rejected, job.normalised) == (len(BAD_ROWS), 1)
    collection = Collection.open(job.collection)
    rejects = {row["image_id"]: row for row in list_rejects(collection)}
    for number, (name, change, reason, message) in zip(numbers, BAD_ROWS, strict=True):
        reject = rejects.pop(f"list.parquet#row={number}" if "id" in change else IDS[number])
        assert (reject["error_stage"], reject["error_reason"], reject["retryable"]) == ("import", reason, False), name
        assert reject["error_message"].startswith(f"row {number} of list.parquet: "), name
        assert message in reject["error_message"], name
    assert rejects == {}
    found = collection.live_rows(["image_id", "embedding"]).drop_null()
    good = [number for number in range(40) if number not in numbers]
    assert found["image_id"].to_pylist() == [IDS[number] for number in good]
    assert vectors_of(found["embedding"]) == pytest.approx(VECTORS[good], abs=1e-7)


def test_ids_are_compared_across_blocks_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("files._IDS", "vector_files._IDS", "import_vectors._BLOCK"):
        monkeypatch.setattr(f"jobs.exchange.{name}", 3)
    ids: dict[str, list[str | None]] = {"a": ["x", None, "y", "z", "x"], "b": ["new", "y", " ", "x"]}
    tables = {name: {"id": each, "embedding": VECTORS[: len(each)].tolist()} for name, each in ids.items()}
    write(tmp_path / "source", {f"{name}.parquet": table for name, table in tables.items()})
    collection = import_vectors(tmp_path / "source", max_reject_rate=1)
    assert {row["image_id"]: row["error_message"].partition(": ")[2] for row in list_rejects(collection)} == {
        "a.parquet#row=1": "expected an id, got none",
        "a.parquet#row=4": "expected a unique id, but 'x' is already that of a.parquet#row=0",
        "b.parquet#row=1": "expected a unique id, but 'y' is already that of a.parquet#row=2",
        "b.parquet#row=2": "expected an id, got none",
        "b.parquet#row=3": "expected a unique id, but 'x' is already that of a.parquet#row=0",
    }
    assert collection.live_rows(["image_id", "embedding"]).drop_null()["image_id"].to_pylist() == ["new", "x", "y", "z"]


def test_rows_beside_an_array_may_have_no_plain_column(tmp_path: Path) -> None:
    write(tmp_path, {"vectors.npy": VECTORS, "rows.parquet": {"image": pictures(40)}})
    found = import_vectors(tmp_path).live_rows(["image_id"])
    assert found["image_id"].to_pylist() == sorted(map(str, range(40)))


def test_an_import_visits_no_web_address(tmp_path: Path) -> None:
    columns = {"image_id": ["a"], "uri": ["http://h/a.png"], "content_hash": ["00"], "embedding": LISTS[:1]}
    table = pa.table(columns).replace_schema_metadata({b"likeness.model": MODEL.model_dump_json()})
    assert read_checks(import_table(tmp_path, table)).num_rows == 0


def test_too_many_rejects_publish_nothing(tmp_path: Path) -> None:
    vectors = VECTORS.copy()
    vectors[:3] = 0
    write(tmp_path, {"vectors.npy": vectors})
    with pytest.raises(TooManyRejectsError, match=r"3 of 40 images were rejected \(7\.5%; mostly zero_vector: 3\)"):
        import_vectors(tmp_path / "vectors.npy")
    assert Collection.open(str(tmp_path / "imported")).runs() == []
    assert import_vectors(tmp_path / "vectors.npy", max_reject_rate=0.1).live_rows().num_rows == 40


# Unusable files


FOUR = VECTORS[:4]
LISTS = FOUR.tolist()
NPY = data_of(FOUR)
NOTHING: list[Any] = [None, []]
BAD_FILES: list[tuple[str, Any, str]] = [  # what it is, the array or columns or files, and what is said of them
    ("one axis", np.array(GOOD), r"holds an array of shape \(8,\): expected \(rows, dimensions\)"),
    ("three axes", np.array([LISTS]), r"holds an array of shape \(1, 4, 8\)"),
    ("no dimensions", np.zeros((4, 0)), r"holds an array of shape \(4, 0\)"),
    ("whole numbers", np.ones((4, 8), int), "holds values of type int64: expected float16, float32 or float64"),
    ("complex", FOUR.astype(np.complex64), "holds values of type complex64"),
    ("objects", FOUR.astype(object), "holds values of type object"),
    ("by columns", np.asfortranarray(FOUR), "is in Fortran order: save it in C order"),
    ("cut off", NPY[: 128 + 2 * 32 + 5], "ends in row 2, but its header says 4 rows"),
    ("negative rows", NPY.replace(b"(4, 8), } ", b"(-4, 8), }"), r"holds an array of shape \(-4, 8\)"),
    ("no end of the header", NPY.replace(b"}", b" ", 1), r"cannot read .*/vectors\.npy as npy"),
    ("not npy", NPY[:3], r"cannot read .*/vectors\.npy as npy"),
    ("no rows", np.zeros((0, 8)), "has no rows: expected at least one vector"),
    ("no vectors", {"id": ["a"]}, r"has no column of vectors \(lists of floats\); its columns are id"),
    ("texts", {"embedding": [["a"]]}, "expected vectors in column `embedding`, lists of floats, got list<"),
    ("lists of addresses", {"url": [["a"]] * 4, "embedding": LISTS}, "paths or URLs in column `url`, got list<"),
    ("numbers as addresses", {"uri": [1, 2, 3, 4], "embedding": LISTS}, "column `uri`, got int64"),
    ("bytes as addresses", {"url": [b"a"] * 4, "embedding": LISTS}, "column `url`, got binary"),
    *(("no value", {"embedding": pa.array([each], FLOATS)}, "has no vectors in its column") for each in NOTHING),
    ("two arrays", {"vectors.npy": FOUR, "b.npy": FOUR}, r"several files \(b\.npy, vectors\.npy\)"),
    (
        "fewer ids",
        {"vectors.npy": FOUR, "x.parquet": {"id": ["a", "b"]}},
        "4 vectors, but .* 2 rows: .* row 2 is the first without",
    ),
    ("nothing", {"a.txt": ""}, r"has no vectors: expected a \.npy .* found a\.txt"),
    ("cut off Parquet", {"x.parquet": data_of({"embedding": LISTS})[:99]}, r"cannot read .*/x\.parquet as parquet"),
    (
        "two lengths",
        {"a.parquet": {"embedding": LISTS}, "b.parquet": {"embedding": [[1.0]]}},
        r"b\.parquet has vectors of 1 dimensions, but .*/a\.parquet of 8: expected one",
    ),
    ("a part without its rows", {"img_emb/img_emb_0.npy": FOUR}, r"has no metadata/metadata_0\.parquet beside it"),
    (
        "a part with too many rows",
        clip_retrieval((FOUR, {"image_path": IDS[:5]})),
        r"img_emb_0\.npy has 4 vectors, .*_0\.parquet has 5 rows: expected a row for each vector; row 4 is the first",
    ),
]


@pytest.mark.parametrize(("content", "message"), [row[1:] for row in BAD_FILES], ids=[row[0] for row in BAD_FILES])
def test_an_unusable_source_makes_no_collection(tmp_path: Path, content: Any, message: str) -> None:
    if not isinstance(content, dict):
        content = {"vectors.npy": content}
    elif not any("." in name for name in content):
        content = {"x.parquet": content}
    write(tmp_path / "source", content)
    with pytest.raises(SourceError, match=message):
        import_vectors(tmp_path / "source")
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "out", "ids": "ids.txt"}, r"--ids goes with a \.npy file, but .* is a clip-retrieval folder"),
        ({"ids": "ids.txt"}, r"--ids goes with a \.npy file, but .* has none"),
        ({"embedding_column": "vector"}, r"has no column `vector`; its columns are id, embedding\. Name the one"),
        ({"uri_column": "embedding"}, "expected paths or URLs in column `embedding`, got list<"),
        ({"uri_column": "link"}, "has no column `link`, which --uri-column names"),
        ({"model": str(DEMO_MODEL)}, r"has vectors of 8 dimensions, .* makes 64: name the model that made them"),
    ],
)
def test_options_that_do_not_fit_the_source(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write(tmp_path, {"x.parquet": {"id": IDS[:4], "embedding": LISTS}})
    write(tmp_path / "out", clip_retrieval((FOUR, {"image_path": IDS[:4]})))
    with pytest.raises(JobError, match=message):
        import_vectors(tmp_path / options.pop("source", "x.parquet"), **options)
    assert not (tmp_path / "imported").exists()


# Models


@pytest.mark.parametrize("other", [None, MODEL.model_copy(update={"fingerprint": "another"})])
def test_files_of_several_models_are_refused(tmp_path: Path, other: ModelRecord | None) -> None:
    table = pa.table({"id": ["a"], "embedding": LISTS[:1]})
    for name, model in (("a", MODEL), ("b", other)):
        metadata = {b"likeness.model": model.model_dump_json()} if model else None
        write(tmp_path / "source", {f"{name}.parquet": table.replace_schema_metadata(metadata)})
    with pytest.raises(OtherModelError, match=r"vectors of several models \(a\.parquet of hand-made.*, b\.parquet of "):
        import_vectors(tmp_path / "source")


def test_vectors_of_an_unknown_model_are_searched_by_id_but_not_by_words(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "pictures", PLAIN)
    write(tmp_path, {"list.parquet": {"id": IDS, "embedding": VECTORS.tolist()}})
    assert "40 images, Flat" in run("import", "list.parquet", "made").out
    like = json.loads(run("search", "made", "--like", "00.jpg", "-k", "3", "--format", "json").out)["matches"]
    best = [IDS[n] for n in np.argsort(-(VECTORS @ VECTORS[0]))[1:4]]
    assert [match["image_id"] for match in like] == best
    for query in (["--text", "a star"], [next((tmp_path / "pictures").rglob("*.png"))]):
        refused = run("search", "made", *query)
        assert refused.code == 2
        assert "imported without the name of their model" in refused.err
    service = build_service(ServeSettings(collection="made"))
    with closing(service), on_this_machine(create_app(service)) as client:
        for part in ({"id": "00.jpg"}, {"embedding": VECTORS[0].tolist(), "offset": 1}):
            answer = client.post("/search", json={"k": 3, **part}).json()
            assert [match["image_id"] for match in answer["matches"]] == best
        assert "imported without" in client.post("/search", json={"text": "a star"}).json()["detail"]
        answer = client.post("/search", files={"image": PLAIN["red.png"]}).json()
        assert "imported without the name of their model" in answer["detail"]
    assert "imported without" in run("embed", "pictures", "made").err + run("reembed", "pictures", "made").err
    write(tmp_path, {"more.npy": VECTORS})
    refused = run("import", "more.npy", "made")
    assert "does not name its model: name the model with --model" in refused.err
    assert run("import", "list.parquet", "made").code == 0  # vectors of one source are of one model
    assert len(Collection.open("made").runs()) == 2


def test_an_import_that_is_interrupted_commits_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"vectors.npy": VECTORS})
    with pytest.raises(KeyboardInterrupt):
        import_vectors(tmp_path / "vectors.npy", progress=stop)
    left = Collection.open(str(tmp_path / "imported")).snapshot()
    assert (left.committed, left.unfinished) == ([], [])
    assert import_vectors(tmp_path / "vectors.npy").live_rows().num_rows == 40


def test_many_imports_are_merged(exported: Collection, tmp_path: Path) -> None:
    export(exported, str(tmp_path / "out"), "parquet")
    for _ in range(4):
        collection = import_vectors(tmp_path / "out")
    assert [isinstance(run, MergedRun) for run in collection.runs()] == [True] * 4
    assert collection.live_rows().num_rows == 40


def test_reembed_reuses_imported_vectors(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def reembed(collection: str, *options: str) -> Any:
        return json.loads(run("reembed", "pictures", collection, *options, "--on", "local", "--format", "json").out)

    monkeypatch.chdir(tmp_path)
    pictures = write_files(tmp_path / "pictures", PLAIN)
    export(embed_here(pictures, tmp_path / "collection"), str(tmp_path / "out"), "parquet")
    assert run("import", "out", "made", "--model", "demo").code == 0
    assert "already there" in run("embed", "pictures", "made", "--model", "demo", "--on", "local").out
    report = reembed("made")
    assert (report["embedded"], report["deleted"]) == (0, 0)
    # Without an export's facts about files, addresses are enough.
    thin = pq.read_table(tmp_path / "out/rows.parquet").select(["image_id", "uri", "embedding"])
    pq.write_table(thin.replace_schema_metadata(None), tmp_path / "thin.parquet")
    assert run("import", "thin.parquet", "thin", "--model", "demo").code == 0
    report = reembed("thin")
    assert (report["embedded"], report["deleted"], report["unchanged"]) == (0, 0, report["listed"])
    # It does not delete vectors from a file among the pictures.
    others = pa.table({"id": ["vector"], "embedding": thin["embedding"][:1]})
    pq.write_table(others, pictures / "vectors.parquet")
    assert run("import", "pictures", "beside", "--model", "demo").code == 0
    (pictures / "vectors.parquet").unlink()
    report = reembed("beside", "--max-missing", "1")
    assert (report["missing"], report["deleted"]) == (0, 0)
    renamed = thin.replace_schema_metadata({b"likeness.model": MODEL.model_dump_json()})
    pq.write_table(renamed, tmp_path / "other.parquet")
    with pytest.raises(OtherModelError, match=r"has exported vectors of .* but --model names"):
        import_vectors(tmp_path / "other.parquet", model=str(DEMO_MODEL))
