"""A page that stays open while the index of its collection changes, or while the server does not answer at once."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from api.http.app import create_app
from api.local import running
from api.search.service import SearchService
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.rows import row_schema
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_run
from tests.support.collections.small_collection import embedded_row, followed_service, png
from tests.support.nights.fake_job import FAKE
from tests.support.servers.page_tools import heading, ids, search, tiles

pytestmark = pytest.mark.browser


def add_index(collection: Collection, count: int, column: str) -> None:
    """A version of this many pictures that have this column and no other."""
    rows = [
        embedded_row(f"{number}.png", f"memory:{number}.png", png((20 * number, 90, 200)), FAKE)
        | {column: f"{column} of {'abc'[number % 3]}"}
        for number in range(count)
    ]
    model = model_record(FAKE.identity)
    schema = row_schema(model.dim, [pa.field(column, pa.string())])
    run = add_run(collection, pa.Table.from_pylist(rows, schema=schema), model=model)
    build_index(collection, runs=[run], accept_lost_runs=True)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.create_or_open(str(tmp_path / "shop"))
    add_index(made, 6, "kind")
    return made


@pytest.fixture
def service(collection: Collection) -> SearchService:
    return followed_service(Path(collection.location))


@pytest.fixture
def url(service: SearchService) -> Iterator[str]:
    with running(create_app(service)) as address:
        yield address


def counted(page: Page) -> Any:
    return expect(page.locator("#facets .facet, #facets .hint").first)


def test_columns_values_and_count_follow_the_index(
    open_page: Callable[..., Page], collection: Collection, service: SearchService
) -> None:
    page = open_page("/?text=red")
    page.get_by_text("Filters and options").click()
    counted(page).to_have_text("kindkind of a2kind of b2kind of c2")
    page.get_by_label("Column", exact=True).select_option("format")
    expect(page.locator(".about")).to_have_text("shop 6 pictures")
    add_index(collection, 9, "mood")
    service.live.refresh()
    search(page, "blue")
    expect(page.locator(".about")).to_have_text("shop 9 pictures")
    counted(page).to_have_text("moodmood of a3mood of b3mood of c3")
    expect(tiles(page).first.locator(".chip")).to_have_text(re.compile("^mood of [abc]$"))
    expect(page.get_by_label("Column", exact=True)).to_have_value("format")
    for label, values in {"Column": ["mood"], "Sort": ["mood", "-mood"], "Group by": ["mood"]}.items():
        options = page.get_by_label(label, exact=True).locator("option")
        offered = options.evaluate_all("all => all.map((option) => option.value)")
        assert [value for value in offered if re.search("kind|mood", value)] == values
        assert len(set(offered)) == len(offered)
    page.get_by_label("Group by").select_option("mood")
    expect(tiles(page).locator(".group")).to_have_count(3)


def test_the_first_page_follows_the_index(
    open_page: Callable[..., Page], collection: Collection, service: SearchService
) -> None:
    page = open_page()
    words = page.get_by_role("list", name="Pictures by")
    expect(words).to_have_text("kind of akind of bkind of c")
    add_index(collection, 9, "mood")
    service.live.refresh()
    page.get_by_role("link", name="kind of a", exact=True).first.click()
    expect(page.get_by_role("alert")).to_contain_text("unknown column")
    page.get_by_role("link", name="Likeness").click()
    expect(words).to_have_text("mood of amood of bmood of c")
    assert len(ids(page)) == 9


def test_values_that_could_not_be_fetched_are_asked_for_again(open_page: Callable[..., Page]) -> None:
    page = open_page("/docs")
    page.route("**/facets", lambda route: route.fulfill(status=503, json={"detail": "too many requests"}))
    page.goto("/?text=red")
    expect(heading(page, "“red”")).to_be_visible()
    page.get_by_text("Filters and options").click()
    counted(page).to_have_text("The values to filter by are missing: too many requests")
    assert len(ids(page)) == 6
    page.unroute("**/facets")
    search(page, "blue")
    counted(page).to_have_text("kindkind of a2kind of b2kind of c2")
    expect(tiles(page).first.locator(".chip")).to_have_count(1)
