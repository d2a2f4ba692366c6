"""Likeness: how it understands queries, what it finds, and how results look in a notebook."""

import base64
import io
import re
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image, ImageColor

from api.errors import OtherModelError
from api.explore import Likeness
from api.explore.neighbours import Neighbours
from api.explore.picture_map import group_colours
from api.explore.widget import ExploreWidget
from api.problems import Problem
from embedder.errors import ModelError
from index.errors import NotACollectionError, QueryError
from index.matches import MATCH_COLUMNS
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, RecordingFetcher, make_collection, png
from tests.support.fake_embedder import FakeEmbedder

MARKUP = "<img src=x onerror=alert(1)>.png"
PICTURES = PLAIN | {MARKUP: png((240, 240, 20))}
URL = "https://pictures.example/query.png"


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    return make_collection(tmp_path_factory.mktemp("collection"), PICTURES, FakeEmbedder())


@pytest.fixture
def fetcher() -> RecordingFetcher:
    files = {f"memory:{name}": data for name, data in PICTURES.items()}
    return RecordingFetcher({**files, URL: png((25, 45, 200))})


@pytest.fixture
def likeness(searcher: Searcher, fetcher: RecordingFetcher) -> Likeness:
    return Likeness(searcher, FakeEmbedder, fetcher=fetcher)


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def sources(self) -> list[str]:
        return [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]


def html_of(found: Any) -> Tags:
    return Tags(found._repr_html_())


BLUE = png((20, 40, 210))
PIXELS = np.full((40, 48, 3), (20, 40, 210), np.uint8)
QUERIES: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path, "path as a string": str, "bytes": lambda _: BLUE,
    "open file": lambda _: io.BytesIO(BLUE),
    "PIL": lambda _: Image.open(io.BytesIO(BLUE)), "pixels": lambda _: PIXELS, "URL": lambda _: URL,
    "vector": lambda _: FakeEmbedder().embed_images(PIXELS[np.newaxis, :32, :32])[0],
}  # fmt: skip


@pytest.mark.parametrize("kind", QUERIES)
def test_a_picture_query_may_have_many_forms(likeness: Likeness, kind: str, tmp_path: Path) -> None:
    (tmp_path / "like blue.png").write_bytes(BLUE)
    found = likeness.search(QUERIES[kind](tmp_path / "like blue.png"), k=2)
    assert found[0].image_id == "blue.png"
    assert (found[0].score or 0.0) > 0.99
    assert [len(found), found.ntotal, found.version] == [2, 4, "000001"]
    assert found[0].metadata["label"] == "blue"


def test_many_searches_at_once(likeness: Likeness) -> None:
    queries: list[Any] = [URL, "green.png", "a red star", BLUE]
    found: Any = likeness.search_batch(queries, k=2, fields=["width"])
    assert [each.matches for each in found] == [
        likeness.search(query, k=2, fields=["width"]).matches for query in queries
    ]
    assert found[0][0].metadata == {"width": 48}
    assert len({*found, *found}) == len(queries)  # results can be members of sets and keys
    searches: list[Any] = [{"id": "green.png"}, {"text": "a red star", "k": 1, "fields": None}, "green.png"]
    found = likeness.search_batch(searches=searches, k=2, offset=1, fields=["width"])
    assert [[match.image_id for match in each] for each in found] == [
        [match.image_id for match in likeness.search("green.png", k=2, offset=1)],
        [match.image_id for match in likeness.search("a red star", k=1, offset=1)],
        [match.image_id for match in likeness.search("green.png", k=2, offset=1)],
    ]
    assert [each[0].metadata for each in found] == [{"width": 48}] * 3
    one: Any
    for one in ("abc", {"text": "abc"}):
        with pytest.raises(TypeError, match=r"got one query, .*abc.*: expected a list of queries; use search"):
            likeness.search_batch(one)
    table = pa.table({"q": ["a red star"]})
    for one in (table, table.to_pandas()):
        with pytest.raises(TypeError, match=r"got a table, a .*, not one of its columns: expected a list of queries"):
            likeness.search_batch(one)
    for column in (table["q"], table.to_pandas()["q"], io.StringIO("a red star")):
        found = likeness.search_batch(column, k=2)
        assert [each.caption for each in found] == ["2 of 4 images like “a red star”"]


def test_a_crop_is_searched_for_and_shown_in_the_grid(likeness: Likeness, fetcher: RecordingFetcher) -> None:
    both = Image.new("RGB", (96, 48), (220, 30, 30))
    both.paste((20, 40, 210), (48, 0, 96, 48))
    fetcher.files["memory:green.png"] = png((20, 40, 210))
    right = [0.5, 0, 0.5, 1]
    of_numpy: Any = np.array(right, np.float32)
    mixed = likeness.search(queries=[{"image": both, "crop": right}, {"id": "red.png", "weight": 0.1}])
    for found in (likeness.search(both, crop=right), likeness.search("green.png", crop=of_numpy), mixed):
        assert found[0].image_id == "blue.png"
        shown = Image.open(io.BytesIO(base64.b64decode(html_of(found).sources[0].partition(",")[2])))
        assert np.abs(np.asarray(shown, int) - (20, 40, 210)).max() < 8
    assert "a part of green.png" in likeness.search("green.png", crop=right).caption
    with pytest.raises(TypeError, match="got crop beside queries"):
        likeness.search(queries=[{"image": both}], crop=right)


def test_the_image_of_an_id_or_match_is_not_among_its_own_matches(likeness: Likeness) -> None:
    by_id = likeness.search("red.png", k=10)
    assert {match.image_id for match in by_id} == {"green.png", "blue.png", MARKUP}
    assert [match.image_id for match in likeness.search(likeness.search(id="blue.png", k=1)[0])] == [
        match.image_id for match in likeness.search(id=likeness.search("blue.png", k=1)[0].image_id)
    ]


def test_any_other_string_is_words(likeness: Likeness) -> None:
    [vector] = FakeEmbedder().embed_texts(["a red star"])
    found = likeness.search("a red star", k=4, words="off")
    assert [m.score for m in found] == pytest.approx([m.score for m in likeness.searcher.search([vector], 4)[0]])
    assert found.caption == "4 of 4 images like “a red star”"


def test_the_squares_of_a_vectors_values_may_overflow(likeness: Likeness) -> None:
    large = np.float32(1e25) * likeness.searcher.vector("red.png")
    assert likeness.search(large)[0].score == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    "query",
    [
        "picturs/star.png", "./star", "../star", "~/star", "/star", "star/", "C:\\star", "C:/star", "\\\\nas\\star",
        "a/b/",
    ],
)  # fmt: skip
def test_a_path_that_does_not_exist_is_not_searched_as_words(likeness: Likeness, query: str) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a file nor an image of index version"):
        likeness.search(query)
    assert len(likeness.search(text=query)) == 4


def test_a_folder_is_not_searched_as_words(likeness: Likeness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "red" / "star").mkdir(parents=True)
    for folder in (str(tmp_path), f"{tmp_path}/", "red/", "red/star", "./red"):
        with pytest.raises(IsADirectoryError, match="is a folder: expected a picture in it, an id, a URL or words"):
            likeness.search(folder)
    assert likeness.search("red").caption == "4 of 4 images like “red”"
    assert likeness.search("black and/or white").caption == "4 of 4 images like “black and/or white”"


@pytest.mark.parametrize(
    ("query", "search", "error", "message"),
    [
        ((), {"id": "red.png", "text": "red"}, TypeError, "got text, id"),
        ((), {"queries": []}, TypeError, "got no queries: expected a list of one or more"),
        ((), {"queries": [{"weight": 2.0}]}, TypeError, "expected one of url, .* in each of the queries, got none"),
        (
            (),
            {"queries": [{"id": "red.png", "text": "blue"}]},
            TypeError,
            "one of url, .* of the queries, got id, text",
        ),
        (("red.png",), {"fields": "label"}, Problem, 'fields: expected a list of columns, got "label"'),
        (("red.png",), {"crop": 5}, TypeError, r"got crop 5: expected \[x, y, width, height\] as fractions"),
        (("red.png",), {"crop": "left"}, TypeError, "got crop 'left': expected "),
        (("red.png",), {"crop": ["a"] * 4}, TypeError, "got crop .*: expected "),
        (("red.png",), {"fields": {"label": 1}}, Problem, 'fields: expected a list of columns, got {"label": 1}'),
        (("red.png",), {"facets": {"label": 1}}, Problem, 'facets: expected a list of columns, got {"label": 1}'),
        ((object(),), {}, TypeError, "got a query of type object: expected a string"),
        ((np.zeros((8, 8, 3)),), {}, TypeError, r"pixels as float64 \(8, 8, 3\): expected uint8"),
        ((np.zeros((8, 8, 2), np.uint8),), {}, TypeError, r"uint8 \(8, 8, 2\): expected uint8 \(height, width\) or"),
        (([1.0, 0.0, 0.0],), {}, Problem, "embedding: expected 16 numbers, as the model of the index makes, got 3"),
        ((np.zeros(16),), {}, Problem, "embedding: expected numbers, not all of them zero, got "),
        (([np.nan, *[1.0] * 15],), {}, Problem, "embedding: expected finite numbers, got "),
        ((), {"id": "gone"}, Problem, 'index version 000001 has no image "gone"'),
        (("https://pictures.example/gone.png",), {}, Problem, r"https://pictures\.example/gone\.png"),
        ((b"hello",), {}, Problem, "expected a picture"),
    ],
)
def test_wrong_queries_are_refused(likeness: Likeness, query: Any, search: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        likeness.search(*query, **search)


def test_keywords_that_would_have_no_effect_are_refused(likeness: Likeness) -> None:
    only: Any = {"where": {"label": "green"}, "limit": 3}
    known = "url, image, text, id, embedding, crop, queries"
    options = "offset, min_score, filter, .*k, .*min_percentile"
    with pytest.raises(TypeError, match=f"got limit, where: expected keywords among {known}, {options}"):
        likeness.search("red.png", **only)
    with pytest.raises(
        TypeError, match=r"got limit, offset, where: expected keywords among min_score, filter, .*k, min_percentile"
    ):
        likeness.explore("red.png", offset=20, **only)
    with pytest.raises(TypeError, match=f"got filter: expected keywords among {known}$"):
        likeness.vector("red.png", filter={"label": "green"})


def test_the_model_is_loaded_once_by_the_first_query_of_it(searcher: Searcher, fetcher: RecordingFetcher) -> None:
    def slow_load() -> FakeEmbedder:
        time.sleep(0.05)  # the other threads need it meanwhile
        return FakeEmbedder()

    likeness = Likeness(searcher, load := Mock(side_effect=slow_load), fetcher=fetcher)
    likeness.search("red.png")
    likeness.search(searcher.vector("red.png"))
    assert [match.image_id for match in likeness.search(text="red", words="only")] == ["red.png"]
    assert load.call_count == 0
    likeness.search_batch(["a red star", "a blue moon", png((1, 2, 3))])
    assert load.call_count == 1


def test_without_its_model_a_collection_says_what_still_works(searcher: Searcher, fetcher: RecordingFetcher) -> None:
    lost = Likeness(searcher, Mock(side_effect=ModelError("there is no model 'lost'")), fetcher=fetcher)
    assert len(lost.search("red.png")) == 3
    with pytest.raises(ModelError, match=r"no model 'lost'\. Searches by id, by vector and for words=.only"):
        lost.search("a red star")
    with pytest.raises(OtherModelError, match=r"expected model 'fake' .*work without a model"):
        Likeness(searcher, lambda: FakeEmbedder(side=64), fetcher=fetcher).search("a red star")


def test_the_grid_shows_pictures_scores_and_labels_beside_the_query(likeness: Likeness) -> None:
    page = html_of(likeness.search(png((200, 40, 40)), k=3))
    assert len(page.sources) == 4  # the query and three matches
    for source in page.sources:
        data = base64.b64decode(source.removeprefix("data:image/jpeg;base64,"))
        assert Image.open(io.BytesIO(data)).size == (48, 40)
    first = Image.open(io.BytesIO(base64.b64decode(page.sources[1].partition(",")[2]))).resize((1, 1)).getpixel((0, 0))
    assert first == pytest.approx((220, 30, 30), abs=8)
    text = " ".join(page.texts)
    assert re.search(r"query a picture.* 0\.\d{3} red ", text)
    assert [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object")] == []


def test_markup_in_names_stays_text(likeness: Likeness) -> None:
    found = likeness.search("yellow <script>alert(1)</script> & \"quotes'", k=4)
    page = html_of(found)
    assert {tag for tag, _ in page.tags} == {"div", "style", "span", "figure", "figcaption", "b", "img"}
    assert all(name in ("class", "title", "src", "alt") for _, attributes in page.tags for name in attributes)
    assert "yellow <script>alert(1)</script> & \"quotes'" in page.texts
    assert any((attributes.get("title") or "").startswith(MARKUP) for _, attributes in page.tags)


def test_a_placeholder_says_why_a_picture_is_missing(likeness: Likeness, fetcher: RecordingFetcher) -> None:
    del fetcher.files["memory:green.png"]
    fetcher.files["memory:blue.png"] = b"no longer a picture"
    page = html_of(likeness.search("red.png", k=3))
    assert len(page.sources) == 2  # the query's and that of one match
    assert "the picture is gone (not_found)" in page.texts
    assert "the picture cannot be read (not_an_image)" in page.texts
    assert any("2 pictures cannot be shown" in text and "scores are still valid" in text for text in page.texts)
    assert not any("/secret/path" in text for text in page.texts)
    one = html_of(likeness.search("red.png", k=1, filter={"image_id": "green.png"}))
    assert any(text.startswith("1 picture cannot be shown") for text in one.texts)


def test_a_collection_that_has_moved_is_opened_and_a_missing_one_refused(tmp_path: Path) -> None:
    make_collection(tmp_path / "here", PICTURES, FakeEmbedder())
    likeness = Likeness.open(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert len(likeness.search("red.png")) == 3  # what is open is mapped
    with pytest.raises(NotACollectionError, match="does not exist: make a collection with `likeness embed`"):
        Likeness.open(tmp_path / "here")
    (tmp_path / "a file").touch()
    with pytest.raises(NotACollectionError, match="a file is not a collection: expected runs/ in it"):
        Likeness.open(tmp_path / "a file")
    moved = Likeness.open(str(tmp_path / "there"))
    assert "4 images, index version 000001, model fake" in repr(moved)
    with pytest.raises(ModelError, match="got embedder 'a:B': expected none, as the index has vectors of fake"):
        Likeness.open(tmp_path / "there", embedder="a:B")
    page = html_of(moved.search("red.png"))
    assert page.sources == []
    assert any("3 pictures cannot be shown" in text for text in page.texts)
    with pytest.raises(ModelError, match=r"'fake' is neither a folder .*has moved, .*LIKENESS_MODEL, in Python model="):
        moved.search("a red star")


def test_an_empty_result_says_so(likeness: Likeness) -> None:
    found = likeness.search("red.png", min_score=1.0)
    assert (
        "no image like red.png passes the options of the search, such as filter and min_score" in html_of(found).texts
    )
    assert repr(found) == "no image like red.png passes the options of the search, such as filter and min_score"
    assert found.to_arrow().num_rows == 0


def test_tables_have_a_row_for_each_match(likeness: Likeness) -> None:
    found = likeness.search("red.png", k=2)
    table = found.to_arrow()
    assert table.schema.names == [*MATCH_COLUMNS, "label", "weight"]
    assert table.schema.field("label").type == pa.string()
    assert table["score"].to_pylist() == [match.score for match in found]
    frame = found.to_pandas()
    assert frame["image_id"].tolist() == [match.image_id for match in found]
    assert frame["rank"].tolist() == [1, 2]
    assert list(frame.columns) == table.schema.names
    some = likeness.search("red.png", k=1, offset=1, fields=["width", "label"])
    assert some.to_arrow().schema.names == [*MATCH_COLUMNS, "width", "label"]
    assert some.to_arrow().select(["rank", "width", "label"]).to_pylist() == [
        {"rank": 2, "width": 48, "label": found[1].metadata["label"]}
    ]


MANY = {f"{n:03}.png": png((n * 3, 250 - n * 3, 128)) for n in range(70)}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Likeness:
    searcher = make_collection(tmp_path_factory.mktemp("collection"), MANY, FakeEmbedder())
    fetcher = RecordingFetcher({f"memory:{name}": data for name, data in MANY.items()})
    return Likeness(searcher, FakeEmbedder, fetcher=fetcher)


def test_a_thumbnail_has_the_sizes_of_a_servers(many: Likeness) -> None:
    sides: list[tuple[Any, int]] = [(np.int64(20), 20), (16, 16), (1024, 48)]
    for side, longer in sides:
        assert max(Image.open(io.BytesIO(many.thumbnail("000.png", side))).size) == longer
    wrong: list[Any] = [0, -1, 15, 1025, 20.5, "20", None, True]
    for side in wrong:
        with pytest.raises(Problem, match=r"side: expected a whole number from 16 to 1,024, got"):
            many.thumbnail("000.png", side)


def test_only_part_of_a_long_result_is_shown(many: Likeness) -> None:
    page = html_of(many.search("000.png", k=69))
    assert len(page.sources) == 61
    assert any(text.startswith("The first 60 of 69 are shown.") for text in page.texts)


def ids(found: Neighbours) -> list[str]:
    return [match.image_id for match in found]


def send(widget: Any, **message: Any) -> dict[str, Any]:
    """Send a message as the page does; returns what it then shows."""
    widget._on_message(widget, message, [])
    return dict(widget.view)


def shown(widget: Any) -> list[str]:
    return list(widget.view["ids"])


def test_pages_of_the_widget_cover_all_matches_in_order(many: Likeness) -> None:
    widget: Any = many.explore("000.png", k=25)
    assert isinstance(widget, ExploreWidget)
    assert len(html_of(many.search("000.png", k=25)).sources) == widget.view["html"].count("data:image/jpeg;base64,")
    seen = shown(widget)
    while widget.view["has_more"]:
        send(widget, page=widget.view["page"] + 1)
        seen += shown(widget)
    assert (widget.view["page"], seen) == (2, ids(many.search("000.png", k=69)))


def test_steps_of_the_widget_can_be_undone_and_a_failed_one_changes_nothing(many: Likeness) -> None:
    widget: Any = many.explore("000.png", k=5)
    first = dict(widget.view)
    assert 'no image "gone"' in send(widget, like="gone")["error"]
    assert "only the first 10,000" in send(widget, page=2_000)["error"]
    assert (widget.view | {"error": ""}, first["can_go_back"]) == (first, False)
    assert send(widget, page=1)["page"] == 1
    assert send(widget, like="024.png")["page"] == 0
    assert shown(widget) == ids(many.search("024.png", k=5))
    assert send(widget, back=True)["page"] == 1
    assert [send(widget, back=True) for _ in range(2)] == [first, first]


def test_the_widget_takes_the_options_of_a_search(many: Likeness) -> None:
    default: Any
    two: Any
    widget: Any = many.explore("003", words="only")
    assert shown(widget) == ["003.png"]
    assert send(widget, like="003.png")["error"] == ""
    assert shown(widget) == ids(many.search("003.png", k=18))
    assert send(widget, toward="024.png")["error"] == ""
    default, two = [many.explore("003.png", **options) for options in ({"k": None}, {"k": np.int64(2)})]
    assert len(shown(default)) == 18
    assert send(two, page=1)["has_more"] is True
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"k": 0}, Problem, "k: expected a whole number from 1 to 10,000, got 0"),
        ({"k": "x"}, Problem, 'k: expected a whole number from 1 to 10,000, got "x"'),
        ({"cursor": "abc"}, TypeError, "got cursor: expected keywords among "),
        ({"words": "no"}, Problem, 'words: expected one of auto, off, only, got "no"'),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            many.explore("003.png", **options)
    nothing: Any = None
    with pytest.raises(TypeError, match="got a query of type NoneType: expected a string"):
        many.explore(nothing)


def test_the_widgets_slider_mixes_two_queries(many: Likeness) -> None:
    widget: Any = many.explore("000.png", toward="001.png", k=4)
    assert widget.view["ends"] == ["000.png", "001.png"]
    view = send(widget, toward="024.png")
    assert (view["ends"], view["share"]) == (["000.png", "024.png"], 0.5)
    send(widget, share=0.25)
    mixed = many.search(queries=[{"id": "000.png", "weight": 0.75}, {"id": "024.png", "weight": 0.25}], k=4)
    assert shown(widget) == ids(mixed)
    # Pages without live widgets show the grid.
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/html"].count("<img") == 4 + 2
    for share, alone in ((0, "000.png"), (7, "024.png")):
        send(widget, share=share)
        assert shown(widget) == ids(many.search(alone, k=4))


def test_without_anywidget_explore_returns_the_static_grid(many: Likeness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "api.explore.widget")
    monkeypatch.setitem(sys.modules, "anywidget", None)  # importing it fails
    found = many.explore("000.png", toward="024.png", k=3)
    assert isinstance(found, Neighbours)
    assert found.caption == "3 of 68 images like 000.png, 024.png"


def test_a_map_draws_every_point_and_pictures_where_there_are_no_points(many: Likeness, tmp_path: Path) -> None:
    points = np.array([[0, 0], [0.001, 0], [1, 1], [0.5, 0.5]])
    drawn = many.map(points, ["000.png", "001.png", "002.png", "003.png"], ["a", "b", "a", "<b>"])._repr_html_()
    assert drawn.count("<circle") == 4
    assert drawn.count("<image") == 4
    circles = np.array(re.findall(r'<circle cx="([^"]*)" cy="([^"]*)"', drawn), float)
    corners = np.array(re.findall(r'<rect x="([^"]*)" y="([^"]*)"', drawn), float)
    inside = circles - corners[:, np.newaxis]
    assert not ((inside >= 0) & (inside <= 44)).all(axis=2).any()  # no picture covers a point
    assert drawn.count("<text") == 3  # the groups' names
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert "<script" not in drawn
    colours = re.findall(r'<circle[^>]* fill="(#[^"]*)"', drawn)
    assert colours[0] == colours[2] != colours[1]
    assert repr(many.map(points[:2], ["000.png", "001.png"])) == "<map of 2 images, which a notebook shows>"
    # Larger y is higher.
    places = [float(y) for y in re.findall(r'<circle[^>]* cy="([^"]*)"', drawn)]
    assert places[2] < places[3] < places[0]
    with pytest.raises(ValueError, match=r"points of shape \(4, 2\) for 3 ids"):
        many.map(points, ["000.png", "001.png", "002.png"])
    with pytest.raises(ValueError, match="points that are not finite"):
        many.map([[0, float("nan")]], ["000.png"])
    without_pictures = Likeness(many.searcher, FakeEmbedder, fetcher=RecordingFetcher({}))
    drawn = without_pictures.map(np.eye(2), ["000.png", "001.png"])._repr_html_()
    assert (drawn.count("<circle"), drawn.count("<image")) == (2, 0)


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (["a", None, "b", "a"], ["a", "b"]),
        (pd.Series([1.5, None, 2.5, 1.5]), ["1.5", "2.5"]),
        (pd.array([3, None, 4, 3], dtype="Int64"), ["3", "4"]),
        (pa.chunked_array([[True, None], [False, True]]), ["False", "True"]),
        (np.array(["2024-05-01", "NaT", "2024-05-02", "2024-05-01"], "datetime64[D]"), ["2024-05-01", "2024-05-02"]),
    ],
)
@pytest.mark.parametrize("shapes", [4, 3])  # points, and an image of them
def test_the_groups_of_a_map_may_be_any_column(
    many: Likeness, groups: Any, names: list[str], shapes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.explore.picture_map._SHAPES", shapes)
    ids: Any = pa.array([f"{number:03}.png" for number in range(4)])
    drawn = many.map([[0, 0], [0, 1], [1, 0], [1, 1]], ids, groups)._repr_html_()
    assert re.findall(r"●</span> ([^<]*)<", drawn) == names
    assert ("<circle" in drawn) is (shapes == 4)


def test_many_points_on_a_map_are_one_image(many: Likeness) -> None:
    count = 6_000
    points = np.stack([np.arange(count) % 2, np.zeros(count)], axis=1)
    points[:68] = 0.5, 1
    ids = [f"{number % 68:03}.png" for number in range(count)]
    drawn = many.map(points, ids, ["left", "right"] * (count // 2))._repr_html_()
    assert "<circle" not in drawn
    assert len(drawn) < 200_000
    assert drawn.count("<image") > 10
    [data] = re.findall(r'href="data:image/png;base64,([^"]*)"', drawn)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert pixels.shape == (1344, 1920, 4)
    rows, columns = np.nonzero(pixels[..., 3])
    assert len(rows) == 3 * 4
    legend = dict(re.findall(r'color:(#[^"]*)">●</span> (left|right)', drawn))
    shown = {f"#{bytes(pixels[row, column, :3].tolist()).hex()}" for row, column in zip(rows, columns, strict=True)}
    assert shown == set(legend)


def test_neighbouring_groups_on_a_map_have_colours_that_differ() -> None:
    centres = np.stack([np.arange(12.0), np.zeros(12)], axis=1)
    colours = group_colours(centres)
    assert len(set(colours)) == 12
    rgb = np.array([ImageColor.getrgb(colour) for colour in colours]) / 255
    assert np.linalg.norm(np.diff(rgb, axis=0), axis=1).min() > 0.6
    assert len(set(group_colours(np.zeros((15, 2))))) == 15


@pytest.mark.parametrize(("count", "coloured", "last"), [(14, 14, "g13"), (15, 15, "g14"), (16, 15, "1 other group")])
def test_each_colour_of_a_map_is_one_group(many: Likeness, count: int, coloured: int, last: str) -> None:
    ids = [f"{number:03}.png" for number in range(2 * count - 1)]
    groups = [f"g{number // 2:02}" for number in range(2 * count - 1)]  # the last one has one picture, others two
    drawn = many.map(np.random.default_rng(0).random((len(ids), 2)), ids, groups)._repr_html_()
    legend = re.findall(r'<span style="color:([^"]*)">●</span> ([^<]*)<', drawn)
    assert [name for _, name in legend[:coloured]] == sorted(set(groups))[:coloured]
    assert legend[-1][1] == last
    assert len({colour for colour, _ in legend}) == len(legend) == min(count, 16)
    assert drawn.count("<text") == coloured
    fills = re.findall(r'<circle[^>]* fill="([^"]*)" fill-opacity="([^"]*)"><title>[^,]*, ([^<]*)<', drawn)
    colours = {name: colour for colour, name in legend}
    assert {(name, fill, opacity) for fill, opacity, name in fills} == {
        (name, colours.get(name, "currentColor"), "0.8" if name in colours else "0.35") for name in groups
    }


def test_own_labels_are_on_the_map_and_in_grids(many: Likeness) -> None:
    found = many.search("000.png", k=3)
    many.mark([found[0], "000.png", "003.png"], "<good>")
    try:
        drawn = many.map(np.eye(3)[:, :2], ["000.png", "003.png", "005.png"], ["a", "b", "c"])._repr_html_()
        assert re.findall(r"<text[^>]*>([^<]*)</text>", drawn) == ["&lt;good&gt;", "c"]  # in place of the groups
        assert [card.heading.endswith("● <good>") for card in found.match_cards()][:2] == [True, False]
        with pytest.raises(QueryError, match=r"holds no image 'gone.png'"):
            many.mark(["gone.png"], "good")
        calls: list[Callable[[Any], object]]
        calls = [lambda ids: many.mark(ids, "good"), many.show, lambda ids: many.map(np.eye(2), ids)]
        for call in calls:
            with pytest.raises(TypeError, match=r"got one id, '000.png': expected a list"):
                call("000.png")
            with pytest.raises(TypeError, match=r"got id 5: expected text"):
                call(["000.png", 5])
    finally:
        many.labels.clear()


def test_selected_pictures_are_shown_with_a_line_each(many: Likeness) -> None:
    shown = many.show(["003.png", "001.png"], ["first <b>", "second"], caption="two")
    assert repr(shown) == "two\n003.png  first <b>\n001.png  second"
    row = shown._repr_html_()
    assert 'title="003.png\nfirst &lt;b&gt;"' in row  # the line below may be cut short
    assert row.count("<img") == 2
    assert row.index("003.png") < row.index("001.png")
    assert "first &lt;b&gt;" in row
    assert 'lk-query"' not in row
    with pytest.raises(ValueError, match="got 1 details for 2 ids"):
        many.show(["003.png", "001.png"], ["one"])
    found = many.search("000.png", k=2)
    assert many.show(found, [None, 5])._repr_html_().count("<img") == 2
    assert repr(many.show(found, [None, 5])) == f"{found[0].image_id}\n{found[1].image_id}  5"
