"""Rows of lists that share an address or an id: each is listed, or a reject that says why."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import SourceError
from tests.support.listings import ids, list_images, metadata, parquet, put, refused, uris, write_list


def test_rows_that_share_an_address_are_all_listed(tmp_path: Path) -> None:
    rows = ["a.jpg,red", "b.jpg,blue", "a.jpg,green", "a.jpg,red", "a.jpg#2,grey", ",none", ",none"]
    listing = list_images(str(put(tmp_path / "list.csv", "\n".join(["uri,colour", *rows]).encode())))
    a = f"{tmp_path}/a.jpg"
    numbers = ["list.csv#row=5", "list.csv#row=6"]
    assert ids(listing) == [a, f"{tmp_path}/b.jpg", f"{a}#3", f"{a}#4", f"{a}#2", *numbers]
    assert uris(listing) == [a, f"{tmp_path}/b.jpg", a, a, f"{a}#2", None, None]
    assert metadata(listing) == {"colour": ["red", "blue", "green", "red", "grey", "none", "none"]}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_column_of_ids_can_be_named(tmp_path: Path, kind: str) -> None:
    rows = [{"sku": "007", "id": "x", "uri": "a.jpg"}, {"sku": "008", "id": "y", "uri": "a.jpg"}]
    location = write_list(tmp_path / f"list.{kind}", rows)
    listing = list_images(location, id_column="sku")
    assert (ids(listing), uris(listing)) == (["007", "008"], [f"{tmp_path}/a.jpg"] * 2)
    assert metadata(listing) == {"id": ["x", "y"]}
    with pytest.raises(SourceError, match=r"no column `ean`, which --id-column names; its columns are sku, id, uri"):
        list_images(location, id_column="ean")


def test_ids_of_cells_can_be_named(tmp_path: Path) -> None:
    location = str(put(tmp_path / "cells.parquet", parquet(jpg=[b"1", b"2", b"3"], key=["p", "q", None])))
    assert ids(list_images(location, id_column="key")) == ["p", "q", "cells.parquet#2"]


NAMES = st.sampled_from(["", "a.jpg", "a.jpg#2", "a.jpg#duplicate=2", "b.jpg", "http://h.test/a", " a.jpg", "./a.jpg"])
IDS = st.sampled_from(
    ["", "1", "2", "01", "a.jpg", "1#2", "1#2147483647", "1#99999999999999999999", "1#duplicate=2", "2\n#2", "None"]
)


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.lists(st.tuples(NAMES, IDS), min_size=1, max_size=8), min_size=1, max_size=3), st.booleans())
def test_no_row_vanishes(tmp_path_factory: pytest.TempPathFactory, lists: list[list[Any]], with_ids: bool) -> None:
    folder, number = tmp_path_factory.mktemp("lists"), itertools.count()
    for rows in lists:
        objects = [{"url": uri, "n": f"n{next(number)}"} | ({"id": given} if with_ids else {}) for uri, given in rows]
        put(folder / f"{len(objects)}-{next(number)}.jsonl", "\n".join(map(json.dumps, objects)).encode())
    listing = list_images(str(folder))
    given = Counter(image_id for _, image_id in itertools.chain(*lists) if with_ids and image_id)
    reasons = refused(listing)
    assert [reason for reason, _ in reasons.values()] == ["duplicate_id"] * (given.total() - len(given))
    assert len(set(ids(listing))) == listing.num_rows == sum(map(len, lists))
    kept = listing["n"].drop_null().to_pylist()
    assert len(set(kept)) == listing.num_rows - len(reasons)
