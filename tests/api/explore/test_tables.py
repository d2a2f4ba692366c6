"""Tables of matches: a notebook and a client make the same data frames, and all pages of a search fit together."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from api.client import LikenessClient
from api.explore import Likeness
from api.http.app import create_app
from api.local import running
from index.search import Searcher
from tests.support.collections.hand_made import of_fake_model
from tests.support.collections.small_collection import fake_service
from tests.support.fake_embedder import FakeEmbedder

LARGE, LARGER = 2**63 - 2, 2**64 - 2
COLUMNS: dict[str, Any] = {
    "signed": pa.array([LARGE, None, -1, LARGE - 1]),
    "unsigned": pa.array([None, 1, LARGER, LARGER - 1], pa.uint64()),
    "whole": pa.array([LARGE, 1, 2, 3]),
    "lists": pa.array([[LARGE, None], [1, 2], None, [LARGE]]),
    "label": pa.array(["x", None, "y", "z"]),
    "taken": pa.array([None if day == 2 else dt.datetime(2024, 5, day) for day in (1, 2, 3, 4)], pa.timestamp("us")),
    "rank": pa.array([10, 20, 30, 40]),
    "metadata.rank": pa.array(["i", "ii", "iii", "iv"]),
    "shares": pa.array([0.5, None, 1.0, 2.0]),
}


@pytest.fixture(scope="module")
def likeness(tmp_path_factory: pytest.TempPathFactory) -> Likeness:
    ids = ["a red.png", "b.png", "c.png", "d.png"]
    collection = of_fake_model(tmp_path_factory.mktemp("tables"), ids, metadata=COLUMNS)
    return Likeness(Searcher.open(collection), FakeEmbedder)


@pytest.fixture(scope="module")
def client(likeness: Likeness) -> Iterator[LikenessClient]:
    with running(create_app(fake_service(likeness.searcher))) as url, LikenessClient(url) as client:
        yield client


def test_whole_numbers_with_gaps_stay_exact(likeness: Likeness, client: LikenessClient) -> None:
    for frame in (likeness.search().to_pandas(), client.search().to_pandas()):
        types = {name: str(frame[name].dtype) for name in ("signed", "unsigned", "whole", "shares")}
        assert types == {"signed": "Int64", "unsigned": "UInt64", "whole": "int64", "shares": "float64"}
        for name in ("signed", "unsigned", "whole"):
            assert [None if pd.isna(value) else int(value) for value in frame[name]] == COLUMNS[name].to_pylist()
        assert [value if value is None else [*value] for value in frame["lists"]] == COLUMNS["lists"].to_pylist()
        assert len(frame[["image_id", "signed"]].merge(frame, on="signed")) == 4


@pytest.mark.parametrize("search", [{}, {"filter": {"label": "none"}}, {"id": "b.png"}, {"group_by": "label"}])
def test_numbers_of_matches_have_the_same_types_without_values(
    likeness: Likeness, client: LikenessClient, search: Any
) -> None:
    ours, theirs = likeness.search(**search).to_pandas(), client.search(**search).to_pandas()
    for name in ("rank", "score", "percentile", "vector_rank", "group_size"):
        assert ours[name].dtype == theirs[name].dtype != object


def test_words_are_dictionaries_in_a_frame(likeness: Likeness, client: LikenessClient) -> None:
    for frame in (likeness.search(text="red", k=1).to_pandas(), client.search(text="red", k=1).to_pandas()):
        assert [{name: [*words] for name, words in found.items()} for found in frame["words"]] == [{"uri": ["red"]}]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("unsigned", [None, 1, LARGER, LARGER - 1]),
        ("signed", [LARGE, None, -1, LARGE - 1]),
        ("taken", ["2024-05-01", None, "2024-05-03", "2024-05-04"]),
        ("label", ["x", None, "y", "z"]),
    ],
)
def test_all_pages_of_a_grouped_search_have_one_schema(likeness: Likeness, column: str, expected: list[Any]) -> None:
    pages = [likeness.search(group_by=column, k=1, offset=offset).to_arrow() for offset in range(5)]
    assert pa.concat_tables(pages)["group"].to_pylist() == expected


def test_no_two_columns_have_one_name(likeness: Likeness, client: LikenessClient) -> None:
    for frame in (likeness.search().to_pandas(), client.search().to_pandas()):
        ranks = frame[["rank", "metadata.rank", "metadata.metadata.rank"]]
        assert ranks.to_numpy().tolist() == [[1, 10, "i"], [2, 20, "ii"], [3, 30, "iii"], [4, 40, "iv"]]
