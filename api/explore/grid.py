"""Pictures side by side as self-contained HTML: for notebooks, their static exports, and mail.

It has no scripts and loads nothing. Colours derive from the text's, so that it fits light and dark themes.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_MISSING: Final = {"None", "nan", "NaN", "NaT", "<NA>"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One picture of a grid, as a JPEG; without one the card shows `words`, or the `problem` with the picture.

    `heading` and `detail` are the lines below, `tooltip` appears on hovering. All are plain text.
    """

    heading: str
    detail: str = ""
    tooltip: str = ""
    jpeg: bytes | None = None
    problem: str = ""
    words: str = ""


def grid_html(query: Sequence[Card], matches: Sequence[Card], *, caption: str, note: str = "") -> str:
    """The query's cards, if any, beside those of its matches, with `caption` above and `note`, if any, below."""
    query_html = f'<div class="lk-query">{"".join(map(card_html, query))}</div>' if query else ""
    return (
        f'<div class="likeness"><style>{CSS}</style><div class="lk-caption">{escape(caption)}</div>'
        f'<div class="lk-row">{query_html}<div class="lk-grid">{"".join(map(card_html, matches))}</div></div>'
        + (f'<div class="lk-note">{escape(note)}</div>' if note else "")
        + "</div>"
    )


def card_html(card: Card) -> str:
    if card.jpeg is not None:
        content = f'<img src="{data_uri(card.jpeg)}" alt="{escape(card.heading)}">'
    elif card.words:
        content = f'<span class="lk-words">{escape(card.words)}</span>'
    else:
        content = f'<span class="lk-missing">{escape(card.problem)}</span>'
    return (
        f'<figure class="lk-card" title="{escape(card.tooltip or card.heading)}"><div class="lk-mat">{content}</div>'
        f'<figcaption><b>{escape(card.heading)}</b><span class="lk-detail">{escape(card.detail)}</span>'
        "</figcaption></figure>"
    )


def shown_text(value: object) -> str | None:
    """A column's value as text; None for a missing one, also of NumPy and pandas."""
    text = str(value)
    return text if isinstance(value, str) or text not in _MISSING else None


def data_uri(data: bytes, kind: str = "jpeg") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


# JupyterLab styles figures and images in its outputs, so the properties that it sets are set here too.
CSS = """
.likeness { font: 13px/1.4 system-ui, sans-serif; max-width: 1100px; }
.likeness .lk-caption, .likeness .lk-note { margin: 4px 0 10px; opacity: .75; overflow-wrap: anywhere; }
.likeness .lk-row { display: flex; flex-wrap: wrap; gap: 18px; align-items: flex-start; }
.likeness .lk-query { flex: 0 0 136px; display: grid; gap: 10px; padding-right: 18px;
  border-right: 1px solid color-mix(in srgb, currentColor 22%, transparent); }
.likeness .lk-grid { flex: 1 1 250px; display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(116px, 1fr)); }
.likeness .lk-card { margin: 0; min-width: 0; }
.likeness .lk-mat { aspect-ratio: 1; display: grid; place-items: center; padding: 6px; border-radius: 8px;
  overflow: hidden; background: color-mix(in srgb, currentColor 7%, transparent); box-sizing: border-box; }
.likeness .lk-mat img { max-width: 100%; max-height: 100%; min-width: 0; min-height: 0; margin: 0; border-radius: 3px; }
.likeness .lk-words { font-size: 15px; font-style: italic; text-align: center; overflow-wrap: anywhere; }
.likeness .lk-missing { font-size: 12px; opacity: .7; text-align: center; overflow-wrap: anywhere; }
.likeness figcaption { display: block; margin: 5px 2px 0; text-align: left; font-style: normal; }
.likeness figcaption b { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.likeness .lk-detail { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;
  overflow-wrap: anywhere; opacity: .75; }
""".replace("\n", " ")
"""The style sheet of a grid; its class names are used nowhere else."""
