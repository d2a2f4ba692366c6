"""Where the files of a collection lie."""

from typing import Final

SEGMENTS: Final = "index/segments"
"""The folder of the index's segments, each in a folder of its own: several versions may share one."""
