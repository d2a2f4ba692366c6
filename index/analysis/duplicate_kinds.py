"""The kinds of duplicates. Which one a pair is, `find.py` and `comparer.py` in `jobs/duplicates` decide."""

from typing import Final, Literal, get_args

Kind = Literal["identical_bytes", "identical_pixels", "re_encoded", "cropped", "similar"]
"""How a picture resembles the one to keep, the strongest kind first. `re_encoded` ones may be resized too."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
PIXEL_KINDS: Final = frozenset(KINDS) - {"identical_bytes", "similar"}
"""The kinds for which pixels are compared."""
DETAIL_KINDS: Final = PIXEL_KINDS - {"identical_pixels"}
"""The kinds for which their details are compared."""
