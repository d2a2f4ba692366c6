"""What a search finds, as a set: totals, order, groups, counts, pages, browsing; and columns that are shown whole."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from jobs.demo.gallery import Exhibit
from tests.support.servers.page_server import Site, columns_site
from tests.support.servers.page_tools import check_axe, heading, ids, labels, params, search, tiles

pytestmark = pytest.mark.browser

LONG = "0123456789abcdef" * 4
LINKS = ["https://shop.example/mugs/red?size=large&page=1", "https://shop.example/mugs/blue"]


def status(page: Page) -> Locator:
    return page.get_by_role("status")


def stacks(page: Page) -> Locator:
    return tiles(page).locator(".group")


def subjects(site: Site) -> list[Exhibit]:
    """Of all pictures; the first is in the collection twice."""
    return [site.gallery.exhibits[0], *site.gallery.exhibits]


def test_the_status_says_how_many_there_are(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=star")
    expect(status(page)).to_have_text(re.compile(r"^24 of 91 pictures · \d+ ms$"))
    page.goto("/?text=star&min_score=0.6")
    count = len(ids(page))
    assert 0 < count < 24
    expect(status(page)).to_have_text(re.compile(rf"^{count} pictures? ·"))
    answer = {"total": 664, "exact": False, "groups": None}
    page.route("**/search", lambda route: route.fulfill(json=route.fetch().json() | answer))
    search(page, "heart")
    expect(status(page)).to_contain_text("of about 664 pictures")
    answer["groups"] = 30
    search(page, "moon")
    expect(status(page)).to_contain_text("of about 30 groups, about 664 pictures")


def test_all_that_was_found_is_sorted_not_only_what_is_shown(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=star")
    best = ids(page)
    page.get_by_label("Sort").select_option("number, highest first")
    expect(page).to_have_url(re.compile("sort=-number"))
    numbered = sorted(site.gallery.exhibits, key=lambda each: -each.number)
    assert ids(page) == [each.image_id for each in numbered[:24]]
    assert params(page) == {"text": "star", "sort": "-number"}
    page.get_by_role("button", name="Show more").click()
    expect(tiles(page)).to_have_count(48)
    assert ids(page) == [each.image_id for each in numbered[:48]]
    shared = open_page(page.url)
    expect(tiles(shared)).to_have_count(48)
    assert ids(shared) == ids(page)
    expect(shared.get_by_label("Sort")).to_have_value("-number")
    page.go_back()
    expect(page.get_by_label("Sort")).to_have_value("")
    expect(tiles(page).first.locator(".tile-link")).to_have_attribute("title", best[0])
    page.get_by_label("Sort").select_option("least similar first")
    expect(page).to_have_url(re.compile("sort=score"))
    assert float(tiles(page).first.locator(".tile-score").inner_text().removeprefix("score")) < 0
    # Folding keeps the best first, so the later choice counts.
    page.get_by_label("Fold duplicates").check()
    expect(page).to_have_url(re.compile("distinct=1"))
    assert params(page) == {"text": "star", "distinct": "1"}
    page.get_by_label("Group by").select_option("label")
    expect(page).to_have_url(re.compile("group_by=label"))
    assert params(page) == {"text": "star", "group_by": "label"}


def test_columns_that_have_an_order_or_groups(open_page: Callable[..., Page]) -> None:
    types = ["string", "int64", "float", "bool", "timestamp[us]", "list<item: string>", "decimal256(40, 2)"]
    types += ["dictionary<values=int64, indices=int8, ordered=0>", "fixed_size_list<item: float>[4]", "json"]
    sortable, groupable = open_page().evaluate(
        """async (types) => {
          const { groupable, sortable } = await import("/web/conditions.js");
          return [sortable, groupable].map((each) => each(types).map(([type]) => type));
        }""",
        {kind: kind for kind in types} | {"image_id": "string"},
    )
    assert sortable == [*types[:5], types[7], "image_id"]
    assert groupable == ["string", "int64", "bool", "timestamp[us]", types[7]]


def test_groups_are_stacks_that_open(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=a+red+star")
    page.get_by_label("Group by").select_option("label")
    expect(stacks(page).first).to_be_visible()
    shapes = Counter(each.subject.shape for each in subjects(site))
    expect(status(page)).to_contain_text(f"{len(shapes)} groups, 91 pictures")
    shown = [re.fullmatch(r"(\w+)\s+(\d+) pictures", text) for text in stacks(page).all_text_contents()]
    assert {match[1]: int(match[2]) for match in shown if match} == shapes
    expect(tiles(page).first).to_have_class("tile stack")
    expect(tiles(page).first.locator(".chip[title^='label: ']")).to_have_count(0)  # the stack says so
    check_axe(page)
    stack = stacks(page).filter(has_text="heart")
    expect(stack).to_have_accessible_name(re.compile(r"^heart \d+ pictures$"))
    stack.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Filters in use")).to_have_text("label: heart ×")
    expect(status(page)).to_contain_text(f"{shapes['heart']} pictures ·")
    assert params(page) == {"text": "a red star", "filter": '{"label":"heart"}'}
    assert labels(page) == {"heart"}
    page.go_back()
    expect(stacks(page)).to_have_count(len(shapes))


def test_groups_of_a_day_and_without_a_value(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?group_by=exif_taken&sort=-exif_taken")
    expect(heading(page, "All pictures")).to_be_visible()
    days = Counter(datetime(2021 + each.number % 4, 1 + each.number % 12, 1) for each in subjects(site))
    day = max(days)
    expect(stacks(page).first).to_have_text(f"{day:%Y-%m-%d} {days[day]} pictures")
    stacks(page).first.click()
    expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"exif_taken: {day:%Y-%m-%d} ×")
    expect(status(page)).to_contain_text(f"{days[day]} pictures ·")
    assert json.loads(params(page)["filter"]) == {"exif_taken": {"$gte": f"{day:%Y-%m-%d}", "$lt": f"{day:%Y-%m}-02"}}
    page.goto("/?group_by=note")
    stacks(page).filter(has_text="no note").click()
    expect(page.get_by_role("list", name="Filters in use")).to_have_text("note: no value ×")
    expect(status(page)).to_contain_text("24 of 90 pictures")


def counts(page: Page, column: str) -> dict[str, int]:
    items = page.get_by_role("list", name=column, exact=True).get_by_role("link").all_inner_texts()
    return {value: int(count) for value, count in (item.split("\n") for item in items)}


def facet(page: Page, column: str, value: str) -> Locator:
    return page.get_by_role("list", name=column, exact=True).get_by_role("link", name=value)


def test_values_are_counted_in_the_current_search_and_filter_it(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=a+red+star&min_score=0.3")
    page.get_by_text("Filters and options").click()
    expect(page.get_by_role("list", name="label", exact=True)).to_be_visible()
    assert len(ids(page)) < 24  # all are shown
    assert counts(page, "label") == Counter(name.split("/")[0] for name in ids(page))
    patterns = Counter(tiles(page).locator(".chip[title^='pattern: ']").all_inner_texts())
    assert counts(page, "pattern") == patterns
    page.goto("/")
    page.get_by_label("Choose a picture").set_input_files(site.gallery.folder / site.gallery.exhibits[1].image_id)
    expect(heading(page, "Like your picture")).to_be_visible()
    page.get_by_text("Filters and options").click()
    expect(page.get_by_role("list", name="label", exact=True)).to_be_visible()
    shapes = Counter(each.subject.shape for each in subjects(site))
    assert counts(page, "label") == shapes
    first, second = (shape for shape, _ in shapes.most_common(2))
    for shape in (first, second):
        facet(page, "label", shape).click()
        expect(page.locator(".facet [aria-current]", has_text=shape)).to_be_focused()
    assert json.loads(params(page)["filter"]) == {"label": {"$in": [first, second]}}
    assert labels(page) == {first, second}
    assert counts(page, "label") == shapes  # so that another can be chosen
    patterns = Counter(each.subject.pattern for each in subjects(site) if each.subject.shape in (first, second))
    expect(page.get_by_role("list", name="pattern", exact=True)).to_contain_text(str(max(patterns.values())))
    assert counts(page, "pattern") == patterns
    check_axe(page)
    facet(page, "label", first).click()
    expect(page.locator(".facet [aria-current]")).to_have_count(1)
    assert json.loads(params(page)["filter"]) == {"label": second}


def test_pages_end_with_the_index_version(open_page: Callable[..., Page]) -> None:
    page, sent = open_page("/?text=star"), list[dict[str, Any]]()
    ids(page)

    def on_request(request: Request) -> None:
        if request.url.endswith("/search"):
            sent.append(json.loads(request.post_data or ""))

    page.on("request", on_request)
    more = page.get_by_role("button", name="Show more")
    more.evaluate("it => { it.click(); it.click(); }")  # two clicks show one page
    expect(tiles(page)).to_have_count(48)
    page.wait_for_load_state("networkidle")
    expect(tiles(page)).to_have_count(48)
    assert len(set(ids(page))) == 48
    assert sent[-1].keys() == {"text", "k", "cursor"}
    document = {"title": "This index version is gone", "detail": "search again without it"}
    page.route("**/search", lambda route: route.fulfill(status=410, json=document))
    more.click()
    expect(page.locator("#more-status")).to_contain_text("The collection has changed since this search")
    expect(tiles(page)).to_have_count(48)
    check_axe(page)
    page.unroute("**/search")
    again = page.get_by_role("button", name="Search again")
    expect(again).to_be_focused()
    again.click()
    expect(again).to_have_count(0)
    expect(status(page)).to_contain_text("48 of 91 pictures")
    more.click()
    expect(tiles(page)).to_have_count(72)
    more.click()
    expect(tiles(page)).to_have_count(91)
    expect(more).to_be_hidden()


def test_browsing_without_a_query(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page()
    expect(heading(page, "What does it look like?")).to_be_visible()
    everything = sorted([*(each.image_id for each in site.gallery.exhibits), f"copies/{site.copied}"])
    assert ids(page) == everything[:24]
    expect(status(page)).to_contain_text("24 of 91 pictures")
    expect(page.get_by_label("Sort").locator(":checked")).to_have_text("by id")
    expect(page.get_by_role("option", name="least similar first")).to_be_disabled()
    expect(tiles(page).first.locator(".tile-score")).to_have_count(0)
    page.get_by_role("button", name="Show more").click()
    expect(tiles(page)).to_have_count(48)
    assert ids(page) == everything[:48]
    page.get_by_role("list", name="Pictures by label").get_by_role("link", name="ring").click()
    expect(heading(page, "ring")).to_be_focused()
    rings = [name for name in everything if "ring/" in name]
    assert ids(page) == rings
    assert json.loads(params(page)["filter"]) == {"label": "ring"}
    page.get_by_role("link", name="Likeness").click()
    expect(heading(page, "What does it look like?")).to_be_visible()
    # What needs scores is kept for a query, and has no effect without one.
    page.goto("/?filter=" + quote('{"label": "ring"}') + "&distinct=1&min_score=0.99&diversity=0.5&sort=score")
    assert ids(page) == rings
    page.get_by_label("Sort").select_option("number, highest first")
    expect(page).to_have_url(re.compile("sort=-number"))
    assert ids(page) == rings[::-1]


@pytest.fixture
def shop(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a collection with long ids, addresses, 64-bit numbers, and folders that repeat the label."""
    same = {"label": "mug", "folder": "mug", "photos": LINKS, "site": LINKS[0], "likes": [2**63 - 1, 7]}
    values = [same | {"image_id": f"{LONG}{number}", "album": 2**63 - 1 - number // 2} for number in range(4)]
    kinds = {"label": pa.string(), "folder": pa.string(), "photos": pa.list_(pa.string()), "site": pa.string()}
    kinds |= {"album": pa.int64(), "likes": pa.list_(pa.int64())}
    with columns_site(tmp_path_factory.mktemp("shop"), values, kinds) as address:
        page = browser.new_page(base_url=address, viewport={"width": 360, "height": 740})
        page.set_default_timeout(10_000)
        yield page
        page.close()


def test_addresses_long_ids_and_large_numbers_are_shown_whole(shop: Page) -> None:
    shop.goto(f"/?id={LONG}0&group_by=album")
    facts = shop.locator(".facts")
    shop.get_by_text("About this picture").click()
    expect(facts.get_by_role("listitem")).to_have_text(LINKS)
    expect(facts.get_by_role("link", name=LINKS[1])).to_have_attribute("href", LINKS[1])
    expect(facts).to_contain_text(f"album{2**63 - 1}likes{2**63 - 1}, 7")
    expect(facts.locator("dd").first).to_have_text(f"{LONG}0")
    expect(stacks(shop)).to_have_count(2)
    name = tiles(shop).first.locator(".tile-name")
    assert name.evaluate("it => it.scrollHeight <= it.clientHeight + 1")
    assert shop.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(shop)
    stacks(shop).filter(has_text=str(2**63 - 2)).click()
    expect(shop.get_by_role("list", name="Filters in use")).to_have_text(f"album: {2**63 - 2} ×")
    expect(tiles(shop)).to_have_count(2)
    assert shop.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_value_that_two_columns_repeat_is_one_chip(shop: Page) -> None:
    shop.goto("/")
    expect(tiles(shop).first.locator(".chip")).to_have_text(["mug", LINKS[0]])
