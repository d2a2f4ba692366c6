"""Where the operator keeps things, in messages and names: callers need not know."""

import re
from typing import Final

# From the root, or a scheme, to the last slash: a folder's name may have spaces, and a message goes on after a comma.
_FOLDERS: Final = re.compile(r"(?<![\w.~])(?:[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|~?/)(?:[^'\":,;()\n]*[\\/])?")


def without_folders(text: str) -> str:
    """`text` with no more of its absolute paths and addresses than their last part: `/srv/x/clip` becomes `clip`."""
    return _FOLDERS.sub("", text)


def shown(text: str, locations: bool) -> str:
    """A message, or a model's id, as callers get it: whole where they are told `locations`."""
    return text if locations else without_folders(text)
