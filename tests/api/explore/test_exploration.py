"""Exploring step by step, the widget that shows it, and the map."""

import builtins
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.errors import Problem
from api.explore.exploration import Exploration
from api.explore.likeness import Likeness, Neighbours
from api.explore.widget import ExploreWidget
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import RecordingFetcher, make_collection, png

MANY = {f"{n:03}.png": png((n * 10, 250 - n * 10, 128)) for n in range(25)}


@pytest.fixture(scope="module")
def likeness(tmp_path_factory: pytest.TempPathFactory) -> Likeness:
    searcher = make_collection(tmp_path_factory.mktemp("collection"), MANY, FakeEmbedder())
    fetcher = RecordingFetcher({f"memory:{name}": data for name, data in MANY.items()})
    return Likeness(searcher, FakeEmbedder, fetcher=fetcher)


def exploring(likeness: Likeness, k: int) -> Exploration:
    return Exploration(lambda search: likeness.search(**search), {"id": "000.png"}, None, {"k": k})


def ids(found: Neighbours) -> list[str]:
    return [match.image_id for match in found]


def test_pages_follow_each_other_and_end(likeness: Likeness) -> None:
    every = ids(likeness.search("000.png", k=24))
    exploration = exploring(likeness, k=10)
    seen = ids(exploration.found)
    while exploration.has_more:
        exploration.turn_to(exploration.page + 1)
        seen += ids(exploration.found)
    assert exploration.page == 2
    assert seen == every


def test_a_match_becomes_the_query_and_back_again(likeness: Likeness) -> None:
    exploration = exploring(likeness, k=5)
    first = ids(exploration.found)
    exploration.turn_to(1)
    exploration.like("024.png")
    assert ids(exploration.found) == ids(likeness.search("024.png", k=5))
    assert exploration.page == 0
    exploration.back()
    assert exploration.page == 1
    exploration.back()
    assert (ids(exploration.found), exploration.can_go_back) == (first, False)
    exploration.back()
    assert ids(exploration.found) == first


def test_sliding_mixes_the_two_queries(likeness: Likeness) -> None:
    exploration = exploring(likeness, k=5)
    exploration.toward("024.png")
    assert exploration.ends == ["000.png", "024.png"]
    assert exploration.share == 0.5
    exploration.slide(0.25)
    mixed = likeness.search(queries=[{"id": "000.png", "weight": 0.75}, {"id": "024.png", "weight": 0.25}], k=5)
    assert [(m.image_id, m.score) for m in exploration.found] == [(m.image_id, m.score) for m in mixed]
    exploration.slide(0)
    assert ids(exploration.found) == ids(likeness.search("000.png", k=5))
    exploration.slide(7)
    assert ids(exploration.found) == ids(likeness.search("024.png", k=5))


def test_a_step_that_fails_leaves_all_as_it_was(likeness: Likeness) -> None:
    exploration = exploring(likeness, k=5)
    before = ids(exploration.found)
    with pytest.raises(Problem, match='got "gone"'):
        exploration.like("gone")
    with pytest.raises(Problem, match="only the first 10,000"):
        exploration.turn_to(2_000)
    assert (ids(exploration.found), exploration.page, exploration.can_go_back) == (before, 0, False)


def test_the_widget_answers_what_the_page_tells(likeness: Likeness) -> None:
    widget = likeness.explore("000.png", toward="024.png", k=4)
    assert isinstance(widget, ExploreWidget)
    assert widget.view["ends"] == ["000.png", "024.png"]
    assert len(widget.view["matches"]) == 4
    widget._on_message(widget, {"like": "012.png"}, [])
    assert [card["id"] for card in widget.view["matches"]] == ids(likeness.search("012.png", k=4))
    assert all(card["src"].startswith("data:image/jpeg;base64,") for card in widget.view["matches"])
    widget._on_message(widget, {"page": 1}, [])
    assert widget.view["page"] == 1
    widget._on_message(widget, {"toward": "001.png"}, [])
    widget._on_message(widget, {"share": 1}, [])
    assert [card["id"] for card in widget.view["matches"]] == ids(likeness.search("001.png", k=4))
    shown = widget.view["matches"]
    widget._on_message(widget, {"like": "gone"}, [])
    assert 'got "gone"' in widget.view["error"]
    assert widget.view["matches"] == shown
    widget._on_message(widget, {"back": True}, [])
    assert (widget.view["share"], widget.view["error"]) == (0.5, "")


def test_where_no_widget_lives_its_grid_is_shown(likeness: Likeness) -> None:
    widget = likeness.explore("000.png", k=3)
    assert isinstance(widget, ExploreWidget)
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/html"].count("<img") == 4


def test_without_anywidget_there_is_the_static_grid(likeness: Likeness, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "anywidget":
            raise ModuleNotFoundError("No module named 'anywidget'", name="anywidget")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "api.explore.widget")
    monkeypatch.setattr(builtins, "__import__", without)
    found = likeness.explore("000.png", toward="024.png", k=3)
    assert isinstance(found, Neighbours)
    assert found.caption == "3 of 25 images like 000.png, 024.png"


def test_a_map_draws_each_image_and_pictures_where_there_is_room(likeness: Likeness, tmp_path: Path) -> None:
    points = np.array([[0, 0], [0.001, 0], [1, 1], [0.5, 0.5]])
    drawn = likeness.map(points, ["000.png", "001.png", "002.png", "003.png"], ["a", "b", "a", "<b>"])._repr_html_()
    assert drawn.count("<circle") == 4
    assert drawn.count("<image") == 3  # one of the first two would cover the other
    assert "&lt;b&gt;" in drawn
    assert "<b>" not in drawn
    assert "<script" not in drawn
    colours = re.findall(r'<circle[^>]* fill="(hsl[^"]*)"', drawn)
    assert colours[0] == colours[2] != colours[1]
    assert repr(likeness.map(points[:2], ["000.png", "001.png"])) == "<a map of 2 images, to be shown in a notebook>"
    # Upwards is up.
    places = [float(y) for y in re.findall(r'<circle[^>]* cy="([^"]*)"', drawn)]
    assert places[2] < places[3] < places[0]
    with pytest.raises(ValueError, match=r"points of shape \(4, 2\) for 3 ids"):
        likeness.map(points, ["000.png", "001.png", "002.png"])
    with pytest.raises(ValueError, match="points that are not finite"):
        likeness.map([[0, float("nan")]], ["000.png"])


def test_a_map_of_pictures_that_are_gone_has_points(likeness: Likeness) -> None:
    lost = Likeness(likeness.searcher, FakeEmbedder, fetcher=RecordingFetcher({}))
    drawn = lost.map(np.eye(2), ["000.png", "001.png"])._repr_html_()
    assert (drawn.count("<circle"), drawn.count("<image")) == (2, 0)


def test_pictures_that_were_picked_out_are_shown_with_a_line_each(likeness: Likeness) -> None:
    shown = likeness.show(["003.png", "001.png"], ["first <b>", "second"], caption="two")
    assert repr(shown) == "two\n003.png  first <b>\n001.png  second"
    row = shown._repr_html_()
    assert 'title="003.png\nfirst &lt;b&gt;"' in row  # the line below may be cut short
    assert row.count("<img") == 2
    assert row.index("003.png") < row.index("001.png")
    assert "first &lt;b&gt;" in row
    assert 'lk-query"' not in row
    with pytest.raises(ValueError, match="got 1 details for 2 ids"):
        likeness.show(["003.png", "001.png"], ["one"])
