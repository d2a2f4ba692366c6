"""The kinds of duplicates. `jobs/duplicates/find.py` finds them, those by pixels with `comparer.py`."""

from typing import Final, Literal, get_args

Kind = Literal["identical_bytes", "identical_pixels", "re_encoded", "cropped", "similar"]
"""How a picture resembles the one to keep, the strongest kind first. `re_encoded` ones may be resized too."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
