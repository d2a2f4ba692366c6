"""The kinds of duplicates: a new one is an entry here. Which one a pair is, `jobs/duplicates/find.py` decides."""

from typing import Final, Literal, get_args

Kind = Literal["identical_bytes", "identical_pixels", "re_encoded", "cropped", "similar"]
"""How a picture resembles the one to keep, the strongest kind first. `re_encoded` ones may be resized too."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PIXEL_KINDS: Final = frozenset(KINDS) - {"identical_bytes", "similar"}
"""The kinds for which pixels are compared."""
