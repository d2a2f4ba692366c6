"""Reads with optional packages what Pillow does not: HEIC, JPEG XL, camera RAW, and unusual TIFFs and JPEGs.

Each package is imported when a file needs it.
"""

from embedder.images.extra.formats import open_extra as open_extra
