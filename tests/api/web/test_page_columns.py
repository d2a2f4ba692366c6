"""Columns whose values JavaScript's numbers or texts cannot hold exactly, from an answer to a filter on the page."""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from api.client import LikenessClient
from tests.support.nights.fake_job import FAKE
from tests.support.servers.page_server import columns_site
from tests.support.servers.page_tools import check_axe, ids, params, tiles

pytestmark = pytest.mark.browser

ALBUMS = (740245381351497731, 740245381351497733, -(2**63), 5)
FIELDS: dict[str, pa.DataType] = {
    "album": pa.int64(),
    "owner": pa.uint64(),
    "friends": pa.list_(pa.int64()),
    "price": pa.decimal128(30, 20),
    "opens": pa.time32("s"),
    "length": pa.duration("s"),
    "city": pa.string(),
}
CITIES = {"": "(empty)", "\t": "(blank)", "Paris": "Paris"}  # with their names on the page


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of twelve pictures, each album with three of them."""
    values = [
        {
            "album": ALBUMS[number % 4],
            "owner": 2**64 - 1 - number % 2,
            "friends": [2**53 + 1 + number, 7],
            "price": Decimal("0.12345678901234567890") + number,
            "opens": dt.time(number, 30),
            "length": dt.timedelta(seconds=number * 60),
            "city": list(CITIES)[number % 3],
        }
        for number in range(12)
    ]
    with columns_site(tmp_path_factory.mktemp("columns"), values, FIELDS) as address:
        yield address


def in_album(number: int) -> set[str]:
    return {f"{each}.png" for each in range(12) if each % 4 == number}


def open_filters(page: Page) -> None:
    page.get_by_text("Filters and options").click()


@pytest.mark.parametrize("number", range(4))
def test_a_click_on_a_large_integer_filters_by_exactly_it(open_page: Callable[..., Page], number: int) -> None:
    page, album = open_page(), ALBUMS[number]
    open_filters(page)
    values = page.get_by_role("list", name="album").get_by_role("link")
    expect(values).to_have_count(4)
    values.filter(has_text=re.compile(rf"^{album}3$")).click()  # with its count
    expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"album: {album} ×")
    assert set(ids(page)) == in_album(number)
    assert json.loads(params(page)["filter"]) == {"album": album}
    page.reload()
    assert set(ids(page)) == in_album(number)


def test_two_large_integers_are_two_values(open_page: Callable[..., Page]) -> None:
    where = {"album": {"$in": list(ALBUMS[:2])}}
    page = open_page("/?filter=" + json.dumps(where))
    assert set(ids(page)) == in_album(0) | in_album(1)
    expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"album: {ALBUMS[0]} or {ALBUMS[1]} ×")
    tiles(page).locator(".tile-link[title='5.png']").click()
    expect(page.locator(".facts")).to_contain_text(f"album{ALBUMS[1]}owner{2**64 - 2}friends{2**53 + 6}, 7")
    assert json.loads(params(page)["filter"]) == where


@pytest.mark.parametrize(("city", "name"), CITIES.items())
def test_a_text_that_cannot_be_seen_has_a_name(open_page: Callable[..., Page], city: str, name: str) -> None:
    page = open_page()
    open_filters(page)
    page.get_by_role("list", name="city", exact=True).get_by_role("link", name=f"{name} 4").click()
    expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"city: {name} ×")
    expect(page.locator(".facet [aria-current]")).to_have_text(f"{name}4")
    assert set(ids(page)) == {f"{each}.png" for each in range(12) if list(CITIES)[each % 3] == city}
    assert json.loads(params(page)["filter"]) == {"city": city}
    check_axe(page)
    page.goto("/?group_by=city")
    expect(tiles(page).locator(".group").filter(has_text=f"{name} 4")).to_have_count(1)


@pytest.mark.parametrize(
    ("column", "bounds", "rows", "sent"),
    [
        ("album", (str(ALBUMS[1]), str(ALBUMS[1])), in_album(1), {"$gte": ALBUMS[1], "$lte": ALBUMS[1]}),
        ("album", ("-9223372036854775808", "0"), in_album(2), {"$gte": -(2**63), "$lte": 0}),
        ("owner", (str(2**64 - 1), ""), {f"{number}.png" for number in range(0, 12, 2)}, {"$gte": 2**64 - 1}),
        ("friends", (str(2**53 + 12), ""), {"11.png"}, {"$gte": 2**53 + 12}),
        ("price", ("", "0.1234567890123456789"), {"0.png"}, {"$lte": "0.1234567890123456789"}),
        ("opens", ("10:30", "11:00"), {"10.png"}, {"$gte": "10:30", "$lte": "11:00"}),
        ("length", ("61", "180"), {"2.png", "3.png"}, {"$gte": 61, "$lte": 180}),
    ],
)
def test_typed_bounds_are_exact(
    open_page: Callable[..., Page], column: str, bounds: tuple[str, str], rows: set[str], sent: Any
) -> None:
    page = open_page()
    open_filters(page)
    page.get_by_label("Column", exact=True).select_option(column)
    page.get_by_role("button", name="Add filter").click()
    for end, bound in zip(("from", "to"), bounds, strict=True):
        page.get_by_label(f"{column}, {end}").fill(bound)
    page.get_by_role("button", name="Apply").click()
    assert set(ids(page)) == rows
    assert json.loads(params(page)["filter"]) == {column: sent}
    page.reload()
    assert set(ids(page)) == rows
    expect(page.get_by_label(f"{column}, from")).to_have_value(bounds[0])


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":9007199254740993}', "[-9007199254740993,9007199254740992]", '{"b":[{"c":18446744073709551615}]}'),
        *('{"9007199254740993":"9007199254740993"}', r'{"a":"\"9007199254740993\\","b":9007199254740993}'),
        *(
            "[1.5,-0.1,1e+300,0.12345678901234568,9007199254740991]",
            '"\\u0000integer"',
            "[]",
            "null",
            "12345678901234567890",
        ),
    ],
)
def test_json_survives_the_page_unchanged(open_page: Callable[..., Page], text: str) -> None:
    page = open_page()
    code = "async (text) => { const json = await import('/web/json.js'); return json.stringify(json.parse(text)); }"
    assert page.evaluate(code, text) == text


def test_clients_get_numbers(url: str) -> None:
    with LikenessClient(url) as client:
        found = client.search(embedding=[1.0] * FAKE.identity.dim, k=12, filter={"album": {"$in": list(ALBUMS[:2])}})
    assert {match.metadata["album"] for match in found.matches} == set(ALBUMS[:2])
    assert all(match.metadata["friends"][0] > 2**53 for match in found.matches)
