"""Where the operator keeps things, in messages and names: callers need not know."""

import re
from typing import Final

# From the root, or a scheme, to the last slash: a folder's name may have spaces, and a message goes on after a comma.
_FOLDERS: Final = re.compile(r"(?<![\w.~])(?:[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|~?/)(?:[^'\":,;()\n]*[\\/])?")


def without_folders(text: str) -> str:
    """`text` with no more of its absolute paths and addresses than their last part: `/srv/x/clip` becomes `clip`."""
    return _FOLDERS.sub("", text)


def shown(message: str, locations: bool) -> str:
    """A message as callers get it: whole where they are told `locations`."""
    return message if locations else without_folders(message)


def shown_model_id(model_id: str, locations: bool) -> str:
    """A model's id as callers get it. That of a folder is its path, of which they may get the last part alone."""
    return re.split(r"[/\\]", model_id)[-1] if not locations and _FOLDERS.match(model_id) else model_id
