"""The web page in a browser: all ways to search, problems, accessibility."""

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from api.access.keys import KeyRing, KeyScope, add_key
from api.settings import Access, RequestLimits
from likeness.cli.search import FITTING_PERCENTILE
from tests.support.servers.page_server import MARKUP, Site, coloured, columns_site, gallery_site
from tests.support.servers.page_tools import address_of, check_axe, exhibit, heading, ids, labels, params, search, tiles

pytestmark = pytest.mark.browser

PHONE: Any = {"width": 360, "height": 740}


# The ways to search


def test_search_by_upload(open_page: Callable[..., Page], site: Site) -> None:
    page, picture = open_page(), exhibit(site)
    page.get_by_label("Choose a picture").set_input_files(site.gallery.folder / picture.image_id)
    expect(heading(page, "Like your picture")).to_be_visible()
    assert ids(page)[0] == picture.image_id
    expect(tiles(page).first.locator(".tile-score")).to_contain_text("1.000")
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"^24 of 91 pictures · \d+ ms$"))
    expect(page.get_by_role("img", name="Your picture")).to_be_visible()
    expect(page.locator("#subject")).to_contain_text("not part of the address")
    assert params(page) == {}
    search(page, "star")
    expect(heading(page, "“star”")).to_be_visible()
    page.go_back()
    expect(heading(page, "Like your picture")).to_be_visible()
    assert ids(page)[0] == picture.image_id
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("The picture is no longer here")


COPY_PICTURE = """async (address) => {
  const png = await (await fetch(address)).blob();
  await navigator.clipboard.write([new ClipboardItem({ "image/png": png })]);
}"""


def test_search_by_paste_of_a_picture_or_of_its_address(open_page: Callable[..., Page], site: Site) -> None:
    picture = exhibit(site, lambda each: each.extension == "png")
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.evaluate(COPY_PICTURE, address_of(picture))
    page.keyboard.press("Control+V")
    expect(heading(page, "Like your picture")).to_be_visible()
    assert ids(page)[0] == picture.image_id
    url = f"{site.pictures_at}/{picture.image_id}"
    page.evaluate("(url) => navigator.clipboard.writeText(url)", f"  {url}\n")
    page.keyboard.press("Control+V")
    expect(heading(page, f"Like {url}")).to_be_visible()
    assert ids(page)[0] == picture.image_id


PASTE = """(field, text) => {
  const clipboardData = new DataTransfer();
  if (text) clipboardData.setData("text/plain", text);
  clipboardData.items.add(new File(["no picture"], "pasted.png", { type: "image/png" }));
  const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
  return field.dispatchEvent(event);
}"""


@pytest.mark.parametrize(
    ("field", "text", "is_text"),
    [
        ("#query-input", "words of an office program, with their picture", True),
        ("#query-input", "", False),
        ("#distinct", "words", False),
        ("body", "words", False),
    ],
)
def test_text_pasted_with_its_picture_stays_text_in_a_text_field(
    open_page: Callable[..., Page], field: str, text: str, is_text: bool
) -> None:
    page = open_page()
    ids(page)
    left_to_the_browser = page.locator(field).evaluate(PASTE, text)
    assert left_to_the_browser == is_text
    if is_text:
        expect(page.get_by_role("alert")).to_be_empty()
        expect(heading(page, "What does it look like?")).to_be_visible()
    else:
        expect(page.get_by_role("alert")).to_contain_text("Not an image that can be used")


TRANSFER = """async (address) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([await (await fetch(address)).blob()], "dropped.jpg", { type: "image/jpeg" }));
  return transfer;
}"""


def test_search_by_drop(open_page: Callable[..., Page], site: Site) -> None:
    page, picture = open_page(), exhibit(site)
    transfer = page.evaluate_handle(TRANSFER, address_of(picture))
    page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_visible()
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(page.locator("#drop")).to_be_hidden()
    expect(page.locator("#subject")).to_contain_text("dropped.jpg")
    assert ids(page)[0] == picture.image_id


def test_search_by_url_can_be_shared(open_page: Callable[..., Page], site: Site) -> None:
    page, picture = open_page(), exhibit(site)
    url = f"{site.pictures_at}/{picture.image_id}"
    search(page, url)
    expect(heading(page, f"Like {url}")).to_be_visible()
    found = ids(page)
    assert found[0] == picture.image_id
    assert params(page) == {"url": url}
    shared = open_page(page.url)
    assert ids(shared) == found
    expect(shared.get_by_role("textbox", name="Words")).to_have_value(url)


def test_search_by_text_and_more_matches(open_page: Callable[..., Page]) -> None:
    page = open_page()
    search(page, "a checked green heart")
    expect(heading(page, "“a checked green heart”")).to_be_visible()
    first = ids(page)
    assert len(first) == 24
    assert "checked-green-heart" in first[0]
    expect(page).to_have_title("a checked green heart – collection")
    page.get_by_role("button", name="Show more").click()
    expect(tiles(page)).to_have_count(48)
    assert ids(page)[:24] == first
    expect(tiles(page).nth(24).locator(".tile-link")).to_be_focused()
    assert params(page) == {"text": "a checked green heart", "k": "48"}


def test_more_like_a_picture_with_its_facts(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=star")
    before = ids(page)
    page.evaluate("scrollTo(0, 600)")
    tiles(page).nth(5).locator(".tile-link").scroll_into_view_if_needed()
    scrolled = page.evaluate("scrollY")
    tiles(page).nth(5).locator(".tile-link").click()
    chosen = next(each for each in site.gallery.exhibits if each.image_id == before[5])
    title = heading(page, f"More like {PurePosixPath(chosen.image_id).name}")
    expect(title).to_be_focused()
    assert params(page) == {"id": chosen.image_id}
    assert chosen.image_id not in ids(page)
    terms, details = (page.locator(f".facts {tag}").all_inner_texts() for tag in ("dt", "dd"))
    facts = dict(zip(terms, details, strict=True))
    assert facts["id"] == chosen.image_id
    assert (facts["label"], facts["number"]) == (chosen.subject.shape, str(chosen.number))
    width, height = chosen.size
    assert facts["pixels"] == f"{width:,} × {height:,}"
    whole = page.get_by_role("link", name="Whole picture").get_attribute("href")
    data = page.request.get(f"/{whole}").body()
    assert data == (site.gallery.folder / chosen.image_id).read_bytes()
    page.go_back()
    expect(heading(page, "“star”")).to_be_visible()
    assert ids(page) == before
    assert page.evaluate("scrollY") == scrolled > 0
    page.go_forward()
    expect(title).to_be_visible()
    page.go_back()
    expect(heading(page, "“star”")).to_be_visible()
    assert ids(page) == before
    page.reload()
    assert (ids(page), page.evaluate("scrollY")) == (before, scrolled)
    page.goto("/duplicates")
    page.go_back()
    assert (ids(page), page.evaluate("scrollY")) == (before, scrolled)


def test_duplicates_are_folded_on_request(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?url=" + quote(f"{site.pictures_at}/{site.copied}"))
    both = {site.copied, f"copies/{site.copied}"}
    assert set(ids(page)[:2]) == both
    page.get_by_label("Fold duplicates").check()
    expect(tiles(page).first.locator(".folded")).to_contain_text("duplicate")
    assert len(both & set(ids(page))) == 1
    assert params(page)["distinct"] == "1"


# Filters


def add_filter(page: Page, column: str) -> Locator:
    if not page.get_by_label("Column").is_visible():
        page.locator("summary").click()
    page.get_by_label("Column").select_option(column)
    page.get_by_role("button", name="Add filter").click()
    return page.get_by_role("group", name=column)


def test_filters_are_built_from_the_columns(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=red")
    add_filter(page, "label").get_by_label("label, value").fill("heart")
    number = add_filter(page, "number")
    number.get_by_label("from").fill("10")
    number.get_by_label("to").fill("80")
    page.get_by_role("button", name="Apply").click()
    expected = {each.image_id for each in site.gallery.exhibits if each.subject.shape == "heart"}
    expected = {image_id for image_id in expected if 10 <= int(image_id.split("/")[1][:4]) <= 80}
    expect(tiles(page)).to_have_count(len(expected))
    assert set(ids(page)) == expected
    assert json.loads(params(page)["filter"]) == {"label": "heart", "number": {"$gte": 10, "$lte": 80}}
    shared = open_page(page.url)
    assert set(ids(shared)) == expected
    expect(shared.locator("summary")).to_contain_text("2")
    shared.locator("summary").click()
    shared.get_by_role("button", name="Remove the filter on number").click()
    expect(tiles(shared)).not_to_have_count(len(expected))
    assert labels(shared) == {"heart"}


def test_a_filter_without_matches_is_reported(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=red&filter=" + quote('{"label": "unicorn"}'))
    expect(page.get_by_role("status")).to_have_text("None of the 91 pictures qualifies.")
    expect(page.get_by_text("Loosen or remove a filter")).to_be_visible()


def test_conditions_are_shown_in_words(open_page: Callable[..., Page]) -> None:
    """In the form are those that its fields cannot edit."""
    conditions: list[tuple[str, Any, str]] = [
        ("label", {"$in": ["star", "heart"]}, "star or heart"),
        ("note", {"$exists": False}, "no value"),
        ("$or", [{"turned": True}, {"number": 3}], '[{"turned":true},{"number":3}]'),
        ("width", {"$gt": 3}, '{"$gt":3}'),
        ("number", {"$gte": 3}, "from 3"),
        ("height", {"$gte": 3, "$lte": 9000}, "from 3, to 9000"),
        ("exif_taken", {"$lte": "2024-05-31T23:59:59.999999"}, "to 2024-05-31"),
        ("modified", {"$gte": "2024-12-01", "$lt": "2025-01-01"}, "from 2024-12-01, before 2025-01-01"),
        ("pattern", {"$prefix": "str"}, "starts with str"),
    ]
    page = open_page("/?filter=" + quote(json.dumps({column: operand for column, operand, _ in conditions})))
    expect(page.get_by_role("list", name="Filters in use").get_by_role("listitem")).to_have_text(
        [f"{column}: {text} ×" for column, _, text in conditions]
    )
    expect(page.locator(".condition code")).to_have_text([*(text for _, _, text in conditions[:4]), conditions[7][2]])
    expect(heading(page, "star, heart")).to_be_attached()


def test_filters_survive_conversion_to_conditions_and_back(open_page: Callable[..., Page]) -> None:
    """Conditions that the fields cannot edit are kept unchanged."""
    columns = {
        "label": (pa.string(), "text"),
        "tags": (pa.list_(pa.string()), "text"),
        "kind": (pa.dictionary(pa.int8(), pa.large_string()), "text"),
        "width": (pa.uint16(), "number"),
        "share": (pa.float32(), "number"),
        "day": (pa.timestamp("us", tz="UTC"), "time"),
        "good": (pa.bool_(), "boolean"),
        "shape": (pa.struct([pa.field("x", pa.int8())]), None),
        "vector": (pa.list_(pa.float32(), 4), "number"),
    }
    filters = [
        {"label": "cat", "tags": {"$prefix": "re"}, "kind": "a"},
        {"width": {"$gte": 1}, "share": {"$lte": 0.5}, "good": False},
        {"day": {"$gte": "2024-05-01", "$lte": "2024-05-31T23:59:59.999999"}},
        {"day": {"$gte": "2024-05-01T12:00:00Z"}},
        {"label": None, "width": 3, "share": {"$gt": 1, "$lte": 2}},
        {"$or": [{"label": "cat"}, {"width": {"$lt": 3}}], "shape": {"$exists": True}},
        {"label": {"$in": ["cat", "dog"]}, "width": {"$gte": "x"}, "good": "true"},
    ]
    kinds, back = open_page().evaluate(
        """async ([types, filters]) => {
          const { filterable, toConditions, toFilter } = await import("/web/conditions.js");
          const kinds = Object.fromEntries(filterable(types));
          return [kinds, filters.map((filter) => toFilter(toConditions(filter, kinds)))];
        }""",
        [{name: str(of) for name, (of, _) in columns.items()}, filters],
    )
    assert kinds == {name: kind for name, (_, kind) in columns.items() if kind}
    assert back == filters


# Problems


def test_a_file_that_is_not_a_picture_and_an_empty_query(open_page: Callable[..., Page], tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not a picture at all")
    page = open_page()
    search(page, "   ")
    expect(page.get_by_role("textbox", name="Words")).to_be_focused()
    assert params(page) == {}
    page.get_by_label("Choose a picture").set_input_files(tmp_path / "notes.png")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Not an image that can be used")
    expect(alert).to_contain_text("expected a picture")
    expect(tiles(page)).to_have_count(0)
    search(page, "star")
    expect(tiles(page)).to_have_count(24)
    expect(alert).to_be_empty()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("/?url=" + quote("http://10.0.0.1/x.png"), "This address is not fetched"),
        ("/?id=nobody", "No such image"),
        ("/?text=red&min_score=7", "min_score: expected"),
        ("/?text=red&filter=" + quote('{"nowhere": 1}'), "unknown column"),
        ("/?text=red&filter=%7B", "filter"),
        *((f"/?text=red&filter={value}", "filter: expected") for value in ("0", "false", "%22%22", "[]")),
        ("/?filter=0", "filter: expected"),
        *((f"/?text=red&min_score={value}", "min_score: expected") for value in ("abc", "Infinity", "%20")),
        *((f"/?text=red&k={value}", "k: expected a whole number") for value in ("0", "abc")),
        ("/?text=red&diversity=abc", 'diversity: expected a number, got "abc"'),
        ("/?text=red&distinct=yes", "distinct: expected a cosine"),
        ("/?text=red&fitting=yes", 'min_percentile: expected a number, got "yes"'),
        *((f"/?text=red&crop={value}", "crop") for value in ("1,2", "a,b,c,d", "0.5", "null")),
    ],
)
def test_problems_are_shown_in_the_servers_words(open_page: Callable[..., Page], address: str, message: str) -> None:
    page = open_page(address)
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("status")).to_be_empty()


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("distinct=1", {"k": 24, "distinct": True}),
        ("distinct=0", {"k": 24, "distinct": 0}),
        ("distinct=false&min_score=&k=1e1", {"k": 10}),
        ("fitting=true&diversity=0.5", {"k": 24, "min_percentile": FITTING_PERCENTILE, "diversity": 0.5}),
        ("fitting=1&k=99999999999999999999", {"k": 1000, "min_percentile": FITTING_PERCENTILE}),
    ],
)
def test_options_in_the_address_are_those_of_the_search(
    open_page: Callable[..., Page], address: str, sent: dict[str, Any]
) -> None:
    page = open_page()
    ids(page)
    with page.expect_request("**/search") as searched:
        page.goto(f"/?text=star&{address}")
    assert searched.value.post_data_json == {"text": "star", **sent}
    page.get_by_text("Filters and options").click()
    page.get_by_label("Search for").select_option("meaning only")
    expect(page).to_have_url(re.compile("words=off"))
    with page.expect_request("**/search") as searched:
        page.reload()
    assert searched.value.post_data_json == {"text": "star", **sent, "k": 24, "words": "off"}


@pytest.mark.parametrize(
    ("address", "ignored"),
    [
        ("text=star&offset=10&min_percentile=99&k=5&k=7", "offset, min_percentile, k"),
        ("text=star&id=a&constructor=1", "id, constructor"),
        ("foo=1", "foo"),
    ],
)
def test_what_the_address_has_in_vain_is_named(open_page: Callable[..., Page], address: str, ignored: str) -> None:
    page = open_page(f"/?{address}")
    expect(page.get_by_role("status")).to_contain_text(f"ignored in the address: {ignored}")
    search(page, "heart")
    expect(heading(page, "“heart”")).to_be_visible()
    expect(page.get_by_role("status")).not_to_contain_text("ignored")


def test_an_unreachable_server_and_a_proxy_that_refuses_in_plain_text(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=star")
    ids(page)
    page.route("**/search", lambda route: route.abort())
    search(page, "heart")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.get_by_label("Sort")).to_be_hidden()
    page.unroute("**/search")
    page.route("**/search", lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, body="busy"))
    search(page, "ring")
    expect(page.get_by_role("alert")).to_contain_text("The server answered with status 429. Try again in 7 s.")


def test_a_problem_with_more_matches_is_shown_beside_the_button(open_page: Callable[..., Page]) -> None:
    page = open_page("/?text=star")
    ids(page)
    summary = page.get_by_role("status").inner_text()
    page.route("**/search", refuse)
    button, status = page.get_by_role("button", name="Show more"), page.locator("#more-status")
    expect(status).to_have_attribute("aria-live", "polite")
    button.evaluate("it => it.scrollIntoView({ block: 'end' })")
    button.click()
    expect(status).to_have_text("too many requests: retry in 7 s")
    expect(status).to_be_in_viewport(ratio=1)
    expect(button).to_be_focused()
    expect(page.get_by_role("status")).to_have_text(summary)
    expect(tiles(page)).to_have_count(24)
    page.unroute("**/search")
    button.click()
    expect(tiles(page)).to_have_count(48)
    expect(status).to_be_empty()


def test_a_key_that_was_removed_is_asked_for_again(open_page: Callable[..., Page]) -> None:
    """Matches that are there stay; a search that finds none leaves nothing of the search before."""
    page = open_page("/?text=star")
    found, field, sort = ids(page), page.get_by_label("API key"), page.get_by_label("Sort")
    page.route("**/search", lambda route: route.fulfill(status=401))
    page.get_by_role("button", name="Show more").click()
    expect(field).to_be_focused()
    expect(page.locator("#more-status")).to_be_empty()
    expect(heading(page, "“star”")).to_be_visible()
    expect(sort).to_be_visible()
    assert ids(page) == found
    search(page, "heart")
    expect(page.get_by_text("Searching…")).to_be_hidden()
    expect(field).to_be_focused()
    expect(heading(page, "“heart”")).to_be_hidden()
    expect(sort).to_be_hidden()
    page.unroute("**/search")
    field.fill("a-key")
    page.keyboard.press("Enter")
    expect(tiles(page)).to_have_count(24)
    expect(heading(page, "“heart”")).to_be_visible()
    expect(sort).to_be_visible()


def refuse(route: Route) -> None:
    document = json.dumps({"title": "Too many requests", "detail": "too many requests: retry in 7 s"})
    route.fulfill(status=429, headers={"Retry-After": "7"}, content_type="application/problem+json", body=document)


NOT_VALID = "This key is not valid: it is mistyped, was removed, or is for another server."


def test_a_server_that_requires_a_key(browser: Browser, tmp_path: Path) -> None:
    """Pictures are also requested with the key, which an img element could not send."""
    key = add_key(tmp_path / "keys.json", "somebody", KeyScope.search)
    with gallery_site(tmp_path, count=10, access=Access(keys=KeyRing(tmp_path / "keys.json"))) as site:
        page = browser.new_page(base_url=site.url)
        page.goto("/?text=star")
        field = page.get_by_label("API key")
        expect(field).to_be_focused()
        expect(page.locator("#key-why")).to_have_text("Ask the operator of this server for one.")
        for wrong in ("lk_wrong", "ключ", "two words"):
            field.fill(wrong)
            page.keyboard.press("Enter")
            expect(field).to_be_empty()
            expect(field).to_be_focused()
            expect(page.locator("#key-why")).to_have_text(NOT_VALID)
        field.fill(key)
        page.keyboard.press("Enter")
        expect(tiles(page)).to_have_count(11)
        expect(field).to_be_hidden()
        expect(tiles(page).first.locator(".mat.loaded img")).to_be_visible()
        tiles(page).first.locator(".tile-link").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Whole picture").click()
        image_id = params(page)["id"].removeprefix("copies/")
        assert download.value.path().read_bytes() == (site.gallery.folder / image_id).read_bytes()
        page.route("**/picture?**", refuse)
        found = ids(page)
        for name in ("Download", "Whole picture"):
            page.get_by_role("link", name=name).click()
            expect(page.locator(".subject .actions")).to_contain_text("too many requests: retry in 7 s")
        assert ids(page) == found
        page.unroute("**/picture?**")
        page.route("**/picture?**", lambda route: route.fulfill(status=401))
        page.get_by_role("link", name="Download").click()
        expect(field).to_be_focused()
        expect(page.locator("#key-why")).to_have_text(NOT_VALID)
        expect(page.locator(".subject .actions")).not_to_contain_text("too many requests")
        assert ids(page) == found
        page.unroute("**/picture?**")
        field.fill(key)
        page.keyboard.press("Enter")
        expect(field).to_be_hidden()
        assert ids(page) == found
        page.reload()
        expect(tiles(page).first).to_be_visible()
        page.close()


def test_pictures_with_unusual_ids_are_shown(browser: Browser, tmp_path: Path) -> None:
    ids = ("..", "a/../b", "two\nlines", "x", "x/picture", "%2e%2e", "q?x=1&size=9#top", "//")
    values = [{"image_id": image_id} for image_id in ids]
    with columns_site(tmp_path, values, limits=RequestLimits(show_locations=False)) as url:
        page = browser.new_page(base_url=url)
        page.goto("/?text=star")
        expect(tiles(page)).to_have_count(len(ids))
        expect(page.locator("#pictures .mat.loaded img")).to_have_count(len(ids))
        for number, image_id in enumerate(ids):
            page.goto(f"/?id={quote(image_id, safe='')}")
            expect(tiles(page)).to_have_count(len(ids) - 1)
            expect(page.locator(".subject .mat.loaded img")).to_be_visible()
            assert page.locator(".facts dd").first.text_content() == image_id
            expect(page.locator(".facts")).not_to_contain_text("source")
            address = page.get_by_role("link", name="Whole picture").evaluate("link => link.href")
            assert page.request.get(address).body() == coloured(number, len(ids))
        page.close()


@pytest.mark.parametrize("locked", [False, True])
def test_a_download_has_the_name_of_a_picture(browser: Browser, tmp_path: Path, locked: bool) -> None:
    """A browser opens a file by its ending, which the id of a frame or a row does not have."""
    names = {"a/photo.PNG": "photo.PNG", "photo.jpg": "photo.jpg", "photo": "photo.png"}
    names |= {"clips/clip.mp4#t=4": "clip.mp4#t=4.png", "clip.mp4#t=12.5": "clip.mp4#t=12.5.png", "v1.2": "v1.2.png"}
    key = add_key(tmp_path / "keys.json", "somebody", KeyScope.search)
    access = Access(keys=KeyRing(tmp_path / "keys.json")) if locked else None
    with columns_site(tmp_path / "c", [{"image_id": image_id} for image_id in names], access=access) as url:
        page = browser.new_page(base_url=url)
        if locked:
            page.goto("/")
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            expect(tiles(page)).to_have_count(len(names))
        saved = {}
        for number, image_id in enumerate(names):
            page.goto(f"/?id={quote(image_id, safe='')}")
            with page.expect_download() as download:
                page.get_by_role("link", name="Download").click()
            saved[image_id] = download.value.suggested_filename
            assert download.value.path().read_bytes() == coloured(number, len(names))
        assert saved == names
        page.close()


def test_a_server_whose_limit_is_less_than_a_page(browser: Browser, tmp_path: Path) -> None:
    with columns_site(tmp_path, [{}] * 9, limits=RequestLimits(max_k=5)) as url:
        page = browser.new_page(base_url=url)
        for address in ("/", "/?text=star", "/?text=star&k=48"):
            page.goto(address)
            expect(tiles(page)).to_have_count(5)
            page.get_by_role("button", name="Show more").click()
            expect(tiles(page)).to_have_count(9)
            assert len(set(ids(page))) == 9
            expect(page.get_by_role("button", name="Show more")).to_be_hidden()
        page.close()


def test_metadata_stays_text_and_a_missing_picture_is_reported(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?id=" + quote(site.copied))
    expect(page.locator(".facts")).to_contain_text(MARKUP)
    page.route("**/picture?**", lambda route: route.fulfill(status=404))
    page.goto("/?text=" + quote(MARKUP))
    expect(heading(page, f"“{MARKUP}”")).to_be_visible()
    expect(tiles(page).first).to_contain_text("No picture")


# Accessibility, and phones


ADDRESSES = {
    "the start": "/",
    "words": "/?text=a+striped+red+star",
    "a picture": "/?id=IMAGE",
    "groups": "/?text=red&sort=-number&group_by=label",
    "filters": "/?text=red&distinct=1&filter="
    + quote('{"label": "heart", "number": {"$gte": 3}, "$or": [{"turned": true}]}'),
    "a problem": "/?id=nobody",
}


def open_state(open_page: Callable[..., Page], site: Site, state: str, **options: Any) -> Page:
    """Open the page in one of these states."""
    page = open_page(ADDRESSES[state].replace("IMAGE", site.copied), **options)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    if state == "filters":
        if page.locator("#unfold").is_visible():
            page.locator("#unfold").click()
        page.locator("summary").click()
        expect(page.locator(".facet").first).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("state", ADDRESSES)
def test_axe_finds_no_violations(open_page: Callable[..., Page], site: Site, state: str, scheme: str) -> None:
    page = open_state(open_page, site, state, color_scheme=scheme, reduced_motion="reduce")
    if state == "words":
        assert tiles(page).locator("img").first.evaluate("it => getComputedStyle(it).transitionDuration") == "0s"
    check_axe(page)


@pytest.mark.parametrize("state", ADDRESSES)
def test_a_phone_needs_no_scrolling_sideways(open_page: Callable[..., Page], site: Site, state: str) -> None:
    page = open_state(open_page, site, state, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    if state in ("words", "groups", "a picture"):
        lefts = tiles(page).evaluate_all("all => new Set(all.map((tile) => tile.offsetLeft)).size")
        assert lefts == 2


HAS_OUTLINE = """(it) => [it, it.nextElementSibling].filter(Boolean)
  .some((each) => getComputedStyle(each).outlineStyle !== "none")"""


def test_the_page_works_by_keyboard_alone(open_page: Callable[..., Page], site: Site) -> None:
    page = open_page("/?text=star")
    ids(page)
    focused = page.locator(":focus")

    def tab_to(target: Locator, max_steps: int) -> None:
        for _ in range(max_steps):
            page.keyboard.press("Tab")
            assert focused.evaluate(HAS_OUTLINE), f"no visible focus on {focused.evaluate('it => it.outerHTML')}"
            if target.evaluate("it => it === document.activeElement"):
                return
        raise AssertionError(f"{target} is not reached in {max_steps} steps")

    page.keyboard.press("Tab")
    expect(focused).to_have_text("Skip to the pictures")
    expect(focused).to_be_in_viewport()
    page.keyboard.press("Enter")
    tab_to(tiles(page).first.locator(".tile-link"), 4)
    page.goto("/")
    ids(page)
    tab_to(page.get_by_role("textbox", name="Words"), 3)
    page.keyboard.type("star")
    page.keyboard.press("Enter")
    expect(heading(page, "“star”")).to_be_visible()
    first = ids(page)[0]
    tab_to(page.locator("#file"), 2)
    tab_to(page.get_by_label("Fold duplicates"), 1)
    page.keyboard.press("Space")
    expect(page).to_have_url(re.compile("distinct=1"))
    expect(tiles(page).first).to_be_visible()
    tab_to(page.locator("summary"), 1)
    page.keyboard.press("Enter")
    tab_to(page.get_by_label("Column"), 40)
    tab_to(page.get_by_role("button", name="Add filter"), 1)
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-label", "label, how")
    page.keyboard.press("Tab")
    page.keyboard.type("star")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("filter="))
    assert labels(page) == {"star"}
    tab_to(page.get_by_label("Group by"), 12)
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("group_by="))
    expect(tiles(page).first.locator(".group")).to_be_visible()
    expect(focused).to_have_id("group-by")
    tab_to(tiles(page).first.locator(".group"), 4)
    page.go_back()
    expect(tiles(page).locator(".group")).to_have_count(0)
    expect(tiles(page).first).to_be_visible()
    page.get_by_label("Size").focus()
    tab_to(tiles(page).first.locator(".tile-link"), 2)
    page.keyboard.press("Enter")
    expect(heading(page, "More like")).to_be_focused()
    assert params(page)["id"] == first
    page.go_back()
    expect(heading(page, "“star”")).to_be_visible()


def test_progress_is_announced(open_page: Callable[..., Page]) -> None:
    page = open_page()
    ids(page)
    gates: list[Route] = []
    page.route("**/search", lambda route: gates.append(route))
    search(page, "star")
    expect(page.get_by_role("status")).to_have_text("Searching…")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
    page.wait_for_timeout(100)
    gates[0].continue_()
    expect(page.get_by_role("status")).to_contain_text("24 of 91 pictures")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


# The API's documentation


def test_every_call_is_documented_and_can_be_tried(open_page: Callable[..., Page]) -> None:
    """Without a network: the fixture checks that no other server gets a request."""
    page = open_page("/docs")
    expect(page.locator(".opblock")).to_have_count(17)
    assert page.locator(".opblock").first.bounding_box()["y"] < 500  # type: ignore[index]
    call = page.locator(".opblock-post").filter(has=page.get_by_text("/search", exact=True))
    call.locator(".opblock-summary-control").click()
    call.get_by_role("button", name="Try it out").click()
    expect(call.locator("input[type=file]")).to_have_count(0)  # options that are JSON are texts, not files
    call.locator("textarea").fill('{"text": "a red star", "k": 1}')
    call.get_by_role("button", name="Execute").click()
    expect(call.locator(".live-responses-table .response .response-col_status")).to_have_text(re.compile("^200"))
