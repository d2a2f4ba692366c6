"""The page of duplicates in a browser."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from api.http.app import create_app
from api.local import running
from index.analysis.duplicate_kinds import Kind
from index.analysis.duplicate_plan import write_plan
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.duplicate_plans import duplicate_plan_of
from tests.support.collections.small_collection import PLAIN, followed_service
from tests.support.servers.page_tools import check_axe

pytestmark = pytest.mark.browser

SIMILAR: Kind = "similar"

WIDTHS: dict[str, Any] = {
    "wide": {"viewport": {"width": 1200, "height": 800}},
    "dark": {"viewport": {"width": 1200, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True},
}


@pytest.fixture
def url(collection: Collection) -> Iterator[str]:
    pictures = {f"memory:{name}": data for name, data in PLAIN.items()}
    with running(create_app(followed_service(Path(collection.location), pictures=pictures))) as url:
        yield url


def test_without_a_plan_the_page_says_how_to_make_one(open_page: Callable[..., Page]) -> None:
    expect(open_page("/duplicates").get_by_role("alert")).to_contain_text("Run “likeness duplicates”")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_best_is_beside_its_duplicates(open_page: Callable[..., Page], collection: Collection, width: str) -> None:
    groups = [("red.png", "green.png", "cropped"), *[("blue.png", "red.png", SIMILAR)] * 20]
    plan = duplicate_plan_of(Searcher.open(collection), *groups)
    write_plan(collection, plan)
    page = open_page("/duplicates", **WIDTHS[width])
    expect(page.get_by_role("status")).to_contain_text("21 groups: 1 cropped, 20 similar")
    expect(page.get_by_role("banner")).to_contain_text("collection")
    first = page.locator(".duplicate-group").first
    expect(first.get_by_role("heading")).to_have_text(["Keep", "Cropped"])
    expect(first).to_contain_text("48 × 40, PNG")
    expect(first.locator(".hint").first).to_have_css("font-weight", "400")
    expect(first.locator(".mat.loaded img")).to_have_count(2)
    left, right = (image.bounding_box() for image in first.locator("img").all())
    assert left
    assert right
    assert left["x"] + left["width"] < right["x"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_axe(page)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".duplicate-group")).to_have_count(21)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    expect(page.get_by_role("heading", name="Best").last).to_be_focused()
    outdated = "the index has changed since: run “likeness duplicates” again"
    expect(page.get_by_role("status")).not_to_contain_text(outdated)
    write_plan(collection, plan.model_copy(update={"version": "000000"}))
    page.reload()
    expect(page.get_by_role("status")).to_contain_text(outdated)


def test_a_kind_that_the_page_does_not_know_is_shown_by_its_name(
    open_page: Callable[..., Page], collection: Collection
) -> None:
    write_plan(collection, duplicate_plan_of(Searcher.open(collection), ("red.png", "green.png", "cropped")))
    page = open_page()

    def of_later_release(route: Route) -> None:
        route.fulfill(body=route.fetch().text().replace('"cropped"', '"mirrored"'), content_type="application/json")

    page.route("**/duplicates/plan?**", of_later_release)
    page.goto(page.url + "duplicates")
    expect(page.get_by_role("status")).to_contain_text("1 group: 1 mirrored")
    expect(page.locator(".duplicate-group").get_by_role("heading")).to_have_text(["Keep", "mirrored"])


def test_more_groups_of_another_plan_are_not_added(open_page: Callable[..., Page], collection: Collection) -> None:
    searcher = Searcher.open(collection)
    plan = duplicate_plan_of(searcher, *[("blue.png", "red.png", SIMILAR)] * 45)
    write_plan(collection, plan)
    page = open_page("/duplicates")
    expect(page.locator(".duplicate-group")).to_have_count(20)
    summary = page.get_by_role("status").inner_text()
    newer = duplicate_plan_of(searcher, *[("green.png", "red.png", SIMILAR)] * 35)
    write_plan(collection, newer.model_copy(update={"created_at": plan.created_at + timedelta(minutes=1)}))
    page.get_by_role("button", name="Show more").click()
    again = page.get_by_role("button", name="Show the new plan")
    expect(again).to_be_focused()
    expect(page.locator("#more-status")).to_contain_text("There is another plan since this page was opened")
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    expect(page.locator(".duplicate-group")).to_have_count(20)
    expect(page.get_by_role("status")).to_have_text(summary)
    check_axe(page)
    again.click()
    expect(page.get_by_role("status")).to_contain_text("35 groups")
    expect(page.locator(".duplicate-group").first.locator(".keep")).to_contain_text("green.png")
    expect(page.get_by_role("heading", name="Best").first).to_be_focused()
    expect(page.locator("#more-status")).to_be_empty()
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".duplicate-group")).to_have_count(35)


def test_groups_stay_if_more_cannot_be_shown(open_page: Callable[..., Page], collection: Collection) -> None:
    plan = duplicate_plan_of(Searcher.open(collection), *[("blue.png", "red.png", SIMILAR)] * 21)
    write_plan(collection, plan)
    page = open_page("/duplicates")
    expect(page.locator(".duplicate-group")).to_have_count(20)
    summary = page.get_by_role("status").inner_text()
    page.route("**/duplicates/plan?**", lambda route: route.fulfill(status=503, json={"detail": "it is busy"}))
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#more-status")).to_have_text("it is busy")
    expect(page.get_by_role("status")).to_have_text(summary)
    page.unroute("**/duplicates/plan?**")
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".duplicate-group")).to_have_count(21)
    expect(page.locator("#more-status")).to_be_empty()
