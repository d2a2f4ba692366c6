"""Texts to measure recall with: the operator's, the collection's own captions, and everyday ones."""

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from embedder.errors import ModelError, UnsupportedInputError
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records.model_record import ModelRecord
from jobs.embedding.model_source import model_record
from jobs.errors import UsageError
from jobs.indexing.query_texts import QueryTexts, collection_texts, read_queries
from tests.support.collections.hand_made import add_run, rows, unit_vectors
from tests.support.fake_embedder import FakeEmbedder


def labelled(folder: Path, **metadata: Any) -> Collection:
    collection = Collection.create_or_open(str(folder))
    model = model_record(FakeEmbedder().identity)
    add_run(collection, rows(list("abcd"), unit_vectors(4, dim=model.dim), metadata=metadata), model=model)
    return collection


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"label": ["cat", "dog", None, "cat"]}, ["cat", "dog"]),
        ({"label": ["x"] * 4, "caption": ["a cat", " a dog ", "", "a cow"]}, ["a cat", "a dog", "a cow"]),
        ({"label": [1, 2, 3, 4]}, []),
        ({}, []),
    ],
)
def test_a_collections_own_texts(tmp_path: Path, metadata: dict[str, Any], expected: list[str]) -> None:
    collection = labelled(tmp_path, **metadata)
    assert collection_texts(LiveRows.of_runs(collection.storage, collection.runs())) == expected


def test_own_texts_come_before_everyday_ones_and_the_operators_come_alone(tmp_path: Path) -> None:
    collection, fake = labelled(tmp_path, label=["cat", "dog", "cow", "cat"]), FakeEmbedder()
    vectors = QueryTexts(collection=collection, load=lambda _: fake)()
    assert vectors is not None
    assert vectors.shape == (400, fake.identity.dim)
    assert np.array_equal(vectors[:3], fake.embed_texts(["cat", "dog", "cow"]))
    texts = [f"number {number}" for number in range(60)]
    vectors = QueryTexts(collection=collection, load=lambda _: fake, texts=texts)()
    assert vectors is not None
    assert np.array_equal(vectors, fake.embed_texts(texts))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnsupportedInputError("pictures only"), ""),
        (
            ModelError("it is gone"),
            "searches by words are not measured, because the model cannot be loaded: it is gone",
        ),
    ],
)
def test_a_model_that_cannot_embed_texts_or_be_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: ModelError, message: str
) -> None:
    def load(_: ModelRecord) -> NoReturn:
        raise error

    collection = labelled(tmp_path)
    assert QueryTexts(collection=collection, load=load)() is None
    assert caplog.messages == [message][: len(message)]
    with pytest.raises(ModelError, match=str(error)):
        QueryTexts(collection=collection, load=load, texts=["a"] * 50)()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "expected a file of texts in UTF-8"), (b"\xff\xfe", "expected a file of texts"), (b"a\nb\na\n", "2 texts")],
)
def test_a_file_of_queries_that_cannot_be_used(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "texts").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_queries(str(tmp_path / "texts"))


def test_a_file_of_queries_may_begin_with_a_byte_order_mark_and_long_texts_are_cut(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(f"{number} {'word ' * 1000}" for number in range(60)), "utf-8-sig")
    texts = read_queries(str(tmp_path / "texts"))
    assert (texts[0][:6], max(map(len, texts))) == ("0 word", 300)
