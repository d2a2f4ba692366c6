"""Where the operator keeps things, in messages and names: callers need not know."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from api.errors import invalid

LOCATION_COLUMNS: Final = frozenset({"uri"})
"""Columns of every row that say where its picture lies."""

# From the root, or a scheme, to the last slash. A folder's name may have spaces, but only quotes show where it ends.
_ROOT: Final = r"(?:[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|~?/)"
_FOLDERS: Final = re.compile(rf"(?<=['\"]){_ROOT}(?:[^'\"\n]*[\\/])?|(?<![\w.~]){_ROOT}(?:[^\s'\"()]*[\\/])?")


def redact(text: str, *, show: bool, places: Sequence[str] = ()) -> str:
    """`text` with no more of absolute paths and addresses than their last part: `/srv/x/clip` becomes `clip`.

    `places` are known to occur in it; others end at white space unless they are quoted. The whole text if `show`.
    """
    if show:
        return text
    for place in sorted(places, key=len, reverse=True):  # one may lie within another
        text = text.replace(place, shown_model_id(place, locations=False))
    return _FOLDERS.sub("", text)


def shown_model_id(model_id: str, locations: bool) -> str:
    """A model's id as callers get it. That of a folder is its path, of which they may get the last part alone."""
    return re.split(r"[/\\]", model_id)[-1] if not locations and re.match(_ROOT, model_id) else model_id


def check_filter(expression: object, columns: Collection[str]) -> None:
    """Raises Problem for a filter that names another than these columns."""
    for name in _columns_in(expression):
        if name not in columns:
            raise invalid("filter", "columns that `GET /index` names", name)


def _columns_in(expression: object) -> Iterator[str]:
    """The columns that a filter names. Whatever else is wrong with it, `index.filters` says."""
    if not isinstance(expression, Mapping):
        return
    for name, operand in expression.items():
        if not str(name).startswith("$"):
            yield name
        for part in operand if name in ("$and", "$or") and isinstance(operand, list | tuple) else [operand]:
            if name in ("$and", "$or", "$not"):
                yield from _columns_in(part)
