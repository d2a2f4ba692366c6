"""Words in the demo collection: which pictures they find, and whether they find none where nothing fits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from api.explore import Likeness
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from index.builder.build_index import build_index
from index.collection import Collection
from jobs.demo.collection import make_demo_collection
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES
from jobs.indexing.query_texts import QueryTexts
from likeness.cli.search import FITTING_PERCENTILE

TEMPLATES = ("a {}", "a picture of a {}", "{}", "the {}", "a photo of a {}")
CAPTIONS = [(pattern, colour, shape) for pattern in PATTERNS for colour in COLOURS for shape in SHAPES]
ANIMALS = ("otter", "camel", "penguin", "goat", "parrot", "whale", "hedgehog")
PLACES = ("in a library", "on a roof", "at the dentist", "under a bed", "in traffic")

Search = tuple[str, dict[str, Any]]
"""Words, and the condition of the images among which they are searched for."""


def say(number: int, *words: str) -> str:
    return TEMPLATES[number % len(TEMPLATES)].format(" ".join(words))


def evenly(count: int) -> list[tuple[str, str, str]]:
    """So many of the captions, from all over."""
    return [CAPTIONS[number * len(CAPTIONS) // count] for number in range(count)]


def present() -> list[Search]:
    """200 searches for what is there."""
    return [(say(number, *words), {}) for number, words in enumerate(evenly(200))]


def absent() -> list[Search]:
    """200 searches for what is not there: 67 for a shape and 67 for a colour that no image has, and 66 for others."""
    captions = [(say(number, *words), words) for number, words in enumerate(evenly(67))]
    others = [f"{number} {animal} {place}" for animal in ANIMALS for place in PLACES for number in ("an old", "a wet")]
    return [
        *((caption, {"label": {"$ne": shape}}) for caption, (_, _, shape) in captions),
        *((caption, {"colour": {"$ne": colour}}) for caption, (_, colour, _) in captions),
        *((other, {}) for other in others[:66]),
    ]


@pytest.fixture(scope="module", params=["labels", "captions"])
def likeness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Likeness]:
    """The demo collection with a column for the colour; with captions of its own, or without."""
    folder = tmp_path_factory.getbasetemp() / "words"
    demo = make_demo_collection(folder, count=2_000)
    rows = demo.live_rows()
    words = [words_of(str(image_id)) for image_id in rows["image_id"].to_pylist()]
    rows = rows.append_column("colour", pa.array([each[1] if len(each) == 3 else None for each in words]))
    if request.param == "captions":
        rows = rows.append_column("caption", pa.array([f"a {' '.join(each)}" for each in words]))
    collection = Collection.create_or_open(str(folder / request.param))
    collection.add_run(str(folder / "pictures"), demo.runs()[0].model, [rows])
    build_index(collection, texts=QueryTexts(collection=collection, load=lambda _: ClipEmbedder.load(str(DEMO_MODEL))))
    with Likeness.open(collection.location) as opened:
        yield opened


def words_of(image_id: str) -> tuple[str, ...]:
    """What a picture shows: pattern, colour and shape. Other files of the gallery are broken."""
    return tuple(Path(image_id).stem.split("-")[1:])


def first(likeness: Likeness, search: Search) -> list[str]:
    words, where = search
    return [each.image_id for each in likeness.search(text=words, k=1, filter=where, min_percentile=FITTING_PERCENTILE)]


@pytest.mark.slow
def test_words_find_matching_pictures_or_nothing(likeness: Likeness) -> None:
    found = [first(likeness, search) for search in present()]
    right = [ids for ids, words in zip(found, evenly(200), strict=True) if ids and words_of(ids[0]) == words]
    assert len(right) >= 0.95 * 200
    searches = absent()
    assert len(searches) == 200
    assert sum(not first(likeness, search) for search in searches) >= 0.9 * 200
