"""The page's tools in a browser: cards, facets, the view of one picture, mixes, options, crops, map."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from jobs.annotation.predictors.examples import read_examples
from likeness.cli.search import FITTING_PERCENTILE
from tests.support.collections.small_collection import png
from tests.support.servers.page_server import Site
from tests.support.servers.page_tools import check_axe, exhibit, heading, ids, labels, params, search, tiles

pytestmark = pytest.mark.browser

PHONE: Any = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def file_name(image_id: str) -> str:
    return PurePosixPath(image_id).name


def bodies(page: Page) -> list[dict[str, Any]]:
    """A list that receives the JSON bodies of later searches."""
    sent: list[dict[str, Any]] = []

    def on_request(request: Request) -> None:
        if request.url.endswith("/search"):
            body = request.post_data_buffer or b""  # empty for a form with a file
            sent.extend([json.loads(body)] if body.startswith(b"{") else [])

    page.on("request", on_request)
    return sent


def test_a_card_shows_name_values_and_score(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page(f"/?id={quote(exhibit(site).image_id)}")
    found = ids(page)
    assert tiles(page).locator(".tile-name").all_inner_texts() == [file_name(image_id) for image_id in found]
    percentile = tiles(page).first.locator(".tile-percentile")
    expect(percentile).to_contain_text("nearer than 9")
    expect(percentile).to_have_attribute("title", re.compile("score lower with a random query of this kind"))
    expect(page.locator("#collection")).to_have_text("collection")
    expect(page).to_have_title("collection")
    outline = heading(page, "More like").evaluate("it => (it.focus(), getComputedStyle(it).outlineStyle)")
    assert outline == "none"
    chip = tiles(page).first.locator(".chip").first
    label = chip.inner_text()
    chip.click()
    expect(page.get_by_role("list", name="Filters in use")).to_have_text(f"label: {label} ×")
    assert labels(page) == {label}
    assert json.loads(params(page)["filter"]) == {"label": label}
    assert "id" in params(page)
    page.get_by_role("link", name=f"label: {label} ×").click()
    expect(page.get_by_role("list", name="Filters in use")).to_be_hidden()
    assert ids(page) == found


def test_several_collections_have_a_switch(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 640, "height": 600})
    names = {"collection": "open", "products": "closed", "broken": "unavailable"}
    names |= {"all that was found in the cellar, and has not been sorted yet": "closed"}
    several = [{"name": name, "path": f"/collections/{name}/", "state": state} for name, state in names.items()]
    page.route("**/collections", lambda route: route.fulfill(json={"collections": several}))
    page.route("**/collections/products/*", lambda route: route.fulfill(body="the other"))
    page.goto("/?text=red")
    switch = page.get_by_label("Collection", exact=True)
    expect(switch.get_by_role("option")).to_have_text([name for name in names if name != "broken"])
    expect(switch.locator(":checked")).to_have_text("collection")
    assert page.locator("#about").evaluate("it => it.getClientRects().length") == 1  # line
    check_axe(page)
    # As a browser shows a page that it has kept, which Playwright's does not.
    switch.evaluate("it => (it.value = '/collections/products/', dispatchEvent(new Event('pageshow')))")
    expect(switch.locator(":checked")).to_have_text("collection")
    switch.select_option("products")
    expect(page.get_by_text("the other")).to_be_visible()
    assert page.url.endswith("/collections/products/?text=red")


def test_a_collection_that_cannot_be_opened_leads_to_the_others(open_page: Callable[..., Page]) -> None:
    page = open_page()
    several = [{"name": "products", "path": "/collections/products/", "state": "closed"}]
    page.route("**/collections", lambda route: route.fulfill(json={"collections": several}))
    page.route("**/index", lambda route: route.fulfill(status=503, json={"detail": "it is damaged"}))
    page.reload()
    expect(page.get_by_text("it is damaged")).to_be_visible()
    expect(page.get_by_label("Collection", exact=True).get_by_role("option")).to_have_text(
        ["Other collections", "products"]
    )


def test_a_small_picture_fills_its_tile_and_a_missing_one_says_why(open_page: Callable[..., Page]) -> None:
    def answer(route: Route) -> None:
        if "star" in route.request.url:
            route.fulfill(body=png((90, 20, 200), (24, 20)), content_type="image/png")
        else:
            document = {"title": "The picture cannot be read", "detail": "the file is another", "reason": "changed"}
            route.fulfill(status=502, body=json.dumps(document), content_type="application/problem+json")

    page = open_page()
    page.route("**/picture?**", answer)
    page.goto("/?text=red")
    star = tiles(page).filter(has=page.locator(".tile-link[title*='star']")).first
    img = star.locator(".mat.loaded img")
    expect(img).to_be_visible()
    boxes = [each.bounding_box() for each in (img, star.locator(".mat"))]
    assert boxes[0]["width"] > 0.9 * boxes[1]["width"]  # type: ignore[index]
    assert img.evaluate("it => getComputedStyle(it).imageRendering") == "pixelated"
    missing = tiles(page).filter(has_not=page.locator(".tile-link[title*='star']")).first.locator(".missing")
    missing.scroll_into_view_if_needed()
    expect(missing).to_have_text("The picture cannot be readchanged")
    expect(missing).to_have_attribute("title", "the file is another")


def test_times_are_filtered_by_month(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=red")
    page.locator("summary").click()
    months = page.get_by_role("list", name="exif_taken", exact=True).get_by_role("link")
    expect(months.first).to_contain_text("2024-12")  # the newest month comes first
    months.filter(has_text="2024-12").click()
    expect(page.locator(".facet [aria-current]")).to_contain_text("2024-12")
    assert json.loads(params(page)["filter"]) == {"exif_taken": {"$gte": "2024-12-01", "$lt": "2025-01-01"}}
    check_axe(page)
    page.locator(".facet [aria-current]").click()
    expect(page.locator(".facet [aria-current]")).to_have_count(0)
    assert "filter" not in params(page)


def test_stepping_through_matches_downloading_and_copying_a_path(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=star", permissions=["clipboard-read", "clipboard-write"])
    found = ids(page)
    tiles(page).nth(3).locator(".tile-link").click()
    steps = page.get_by_role("navigation", name="Search results")
    expect(steps).to_contain_text("4 of 24")
    steps.get_by_role("link", name="Next").click()
    expect(heading(page, f"More like {file_name(found[4])}")).to_be_focused()
    assert params(page) == {"id": found[4]}
    page.keyboard.press("Alt+ArrowLeft")  # the browser goes back, if it has a window
    expect(steps).to_contain_text("5 of 24")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(steps).to_contain_text("1 of 24")
    expect(steps.get_by_role("link", name="Previous")).to_have_count(0)
    page.reload()
    expect(heading(page, f"More like {file_name(found[0])}")).to_be_visible()
    expect(steps).to_contain_text("1 of 24")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == file_name(found[0])
    assert download.value.path().read_bytes() == (site.gallery.folder / found[0].removeprefix("copies/")).read_bytes()
    page.get_by_role("button", name="Copy path").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == str(site.gallery.folder / found[0].removeprefix("copies/"))


def mark(tile: Locator, sign: str) -> None:
    tile.hover()
    tile.get_by_role("button", name=f"{sign} like").click()


def test_marked_pictures_are_mixed_into_the_query(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=red")
    found, sent = ids(page), bodies(page)
    mark(tiles(page).nth(0), "More")
    mark(tiles(page).nth(1), "More")
    mark(tiles(page).nth(2), "Less")
    expect(page.get_by_role("region", name="Marked pictures")).to_contain_text("like 2 pictures, unlike 1")
    check_axe(page)
    page.locator("#mix-search").click()
    expect(page.get_by_role("list", name="Mixed with").get_by_role("link")).to_have_count(3)
    assert not set(found[:3]) & set(ids(page))
    likes = [{"id": found[0]}, {"id": found[1]}, {"id": found[2], "weight": -0.3}]
    assert sent[-1]["queries"] == [{"text": "red"}, *likes]
    again = open_page(page.url)
    assert ids(again) == ids(page)
    # Marks last until they are cleared.
    expect(page.get_by_role("region", name="Marked pictures")).to_contain_text("like 2 pictures, unlike 1")
    more = ids(page)[0]
    mark(tiles(page).nth(0), "Less")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as examples").click()
    assert download.value.suggested_filename == "examples.jsonl"
    labels = dict.fromkeys(found[:2], "like") | dict.fromkeys([found[2], more], "unlike")
    assert read_examples([str(download.value.path())]) == labels
    page.get_by_role("link", name=f"Less like {found[2]}").click()
    expect(page.get_by_role("list", name="Mixed with").get_by_role("link")).to_have_count(2)
    # With an uploaded picture, which is not part of the address.
    page.locator("#file").set_input_files(site.gallery.folder / exhibit(site).image_id)
    expect(heading(page, "Like your picture")).to_be_visible()
    expect(page.get_by_role("list", name="Mixed with")).to_have_count(0)
    ids(page)
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_role("region", name="Search results")).to_be_focused()
    mark(tiles(page).nth(4), "Less")
    page.locator("#mix-search").click()
    expect(page.get_by_role("list", name="Mixed with").get_by_role("link")).to_have_count(1)
    assert list(sent[-1]["queries"][0]) == ["image"]
    tiles(page).first.locator(".chip").first.click()
    page.get_by_role("list", name="Filters in use").get_by_role("link").click()
    expect(page.get_by_role("list", name="Filters in use")).to_be_hidden()
    ids(page)
    page.get_by_role("link", name="Less like").click()
    expect(page.get_by_role("list", name="Mixed with")).to_have_count(0)
    expect(heading(page, "Like your picture")).to_be_visible()


def test_search_options_and_tile_size(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=star&words=off")
    found, sent = ids(page), bodies(page)
    width = tiles(page).first.bounding_box()["width"]  # type: ignore[index]
    page.get_by_label("Size").select_option("large")
    assert tiles(page).first.bounding_box()["width"] > 1.3 * width  # type: ignore[index]
    page.reload()
    assert ids(page) == found
    assert tiles(page).first.bounding_box()["width"] > 1.3 * width  # type: ignore[index]
    middle = float(tiles(page).nth(9).locator(".tile-score").inner_text().removeprefix("score").strip())
    page.locator("summary").click()
    page.get_by_label("Minimum score").fill(str(middle))
    page.get_by_label("Minimum score").press("Enter")
    expect(tiles(page)).not_to_have_count(24)
    assert ids(page) == found[: len(ids(page))]
    assert sent[-1]["min_score"] == middle == float(params(page)["min_score"])
    page.get_by_label("Minimum score").fill("")
    page.get_by_label("Only what fits the words").check()
    expect(tiles(page)).not_to_have_count(24)
    assert sent[-1]["min_percentile"] == FITTING_PERCENTILE
    assert params(page) == {"text": "star", "words": "off", "fitting": "1"}
    page.get_by_label("Only what fits the words").uncheck()
    page.get_by_label("Minimum score").fill("0.999")
    page.get_by_label("Minimum score").blur()
    expect(page.get_by_text("Lower the minimum score.")).to_be_visible()
    page.get_by_label("Minimum score").fill("")
    page.get_by_label("Minimum score").blur()
    page.get_by_label("Diversity").fill("0.8")
    expect(tiles(page)).to_have_count(24)
    assert sent[-1]["diversity"] == 0.8
    assert params(page) == {"text": "star", "words": "off", "diversity": "0.8"}
    assert ids(page) != found


def drag(page: Page, layer: Locator, box: tuple[float, float, float, float]) -> None:
    area = layer.bounding_box()
    assert area is not None
    x, y, width, height = box
    page.mouse.move(area["x"] + x * area["width"], area["y"] + y * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + (x + width) * area["width"], area["y"] + (y + height) * area["height"], steps=4)
    page.mouse.up()


def test_search_by_a_part_of_a_picture(open_page: Callable[..., Page], site: Site) -> None:
    chosen = exhibit(site)
    page = open_page(f"/?id={quote(chosen.image_id)}")
    whole, sent = ids(page), bodies(page)
    expect(page.locator(".subject .mat.loaded img")).to_be_visible()
    page.get_by_role("button", name="Search a part").click()
    layer = page.get_by_role("application", name="Part of the picture")
    expect(layer).to_be_focused()
    check_axe(page)
    drag(page, layer, (0.5, 0.1, 0.4, 0.3))
    page.get_by_role("button", name="Search this part").click()
    expect(heading(page, f"More like a part of {file_name(chosen.image_id)}")).to_be_visible()
    assert sent[-1]["crop"] == pytest.approx([0.5, 0.1, 0.4, 0.3], abs=0.02)
    assert [float(fraction) for fraction in params(page)["crop"].split(",")] == sent[-1]["crop"]
    assert ids(page) != whole
    expect(page.locator(".crop.shown .crop-box")).to_be_visible()
    # By keyboard, on an uploaded picture.
    page.locator("#file").set_input_files(site.gallery.folder / chosen.image_id)
    expect(heading(page, "Like your picture")).to_be_visible()
    ids(page)
    page.get_by_role("button", name="Search a part").click()
    for key in ("ArrowLeft", "ArrowUp", "Shift+ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(heading(page, "Like a part of your picture")).to_be_visible()
    picture = {"name": "a", "mimeType": "image/png", "buffer": (site.gallery.folder / chosen.image_id).read_bytes()}
    form: Any = {"image": picture, "crop": "[0.23,0.23,0.52,0.5]", "k": "24"}
    assert ids(page) == [match["image_id"] for match in page.request.post("/search", multipart=form).json()["matches"]]
    page.get_by_role("button", name="Search a part").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Search a part")).to_be_focused()


def test_no_part_is_offered_of_a_picture_that_cannot_be_shown(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page()
    waiting: list[Route] = []
    page.route("**/picture?**size=768", lambda route: waiting.append(route))
    page.goto(f"/?id={quote(exhibit(site).image_id)}")
    page.get_by_role("button", name="Search a part").click()
    expect(page.get_by_role("application")).to_be_visible()
    page.route("**/picture?**size=768", lambda route: route.fulfill(status=404))
    waiting[0].fulfill(status=404)
    expect(page.locator(".subject .missing")).to_be_visible()
    expect(page.get_by_role("application")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("part|Cancel"))).to_have_count(0)
    page.reload()
    expect(page.locator(".subject .missing")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("part|Cancel"))).to_have_count(0)


def test_on_a_phone_the_form_folds_away(open_page: Callable[..., Page]) -> None:
    page = open_page("/", **PHONE)
    search(page, "a blue star")
    expect(heading(page, "“a blue star”")).to_be_visible()
    ids(page)
    expect(page.locator("#search-form")).to_be_hidden()
    assert tiles(page).first.bounding_box()["y"] < 320  # type: ignore[index]
    expect(tiles(page).first.get_by_role("button", name="More like")).to_be_visible()
    unfold = page.locator("#unfold")
    unfold.click()
    expect(unfold).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("textbox", name="Words")).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    check_axe(page)
    search(page, "a red heart")
    expect(page.locator("#search-form")).to_be_hidden()


def test_a_region_of_the_map_is_a_filter(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=star", viewport={"width": 1200, "height": 1000})
    places = Counter(each.number % 3 for each in site.gallery.exhibits if each.image_id in ids(page))
    page.get_by_text("Filters and options").click()
    drawing = page.get_by_role("img", name=f"{places[0] + places[1]} of 24 pictures have a location")
    expect(drawing).to_be_visible()
    check_axe(page)
    page.get_by_role("button", name="Choose a region").click()
    drag(page, page.get_by_role("application"), (0.01, 0.01, 0.5, 0.98))
    page.get_by_role("button", name="Only this region").click()
    expect(page.get_by_role("list", name="Filters in use")).to_contain_text("exif_longitude: from ")
    numbers = {each.image_id: each.number for each in site.gallery.exhibits}
    assert {numbers.get(image_id, 0) % 3 for image_id in ids(page)} == {0}
    assert set(json.loads(params(page)["filter"])) == {"exif_latitude", "exif_longitude"}
