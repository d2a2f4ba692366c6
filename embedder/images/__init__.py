"""The uint8 crop that a model takes, from the bytes of a picture.

Crop and resize are one step, with the rounding of the stock image processors. Transparency is put over white first,
EXIF orientation is applied to the small crop, and large JPEGs, but no other formats, are decoded at reduced scale.

A file of a few hundred bytes can take gigabytes and hours, and a thread that decodes it cannot be stopped, so pictures
are decoded in processes of their own, in jobs and servers alike. Headers are checked first (`limits.py`).
Usual pictures go to as many processes as there are cores; one that takes much goes to the only process for heavy ones,
so usual pictures never wait for those. The kernel ends a process whose picture takes too long, and it ends with its
owner.
"""

from embedder.images.decode import CropSpec as CropSpec
from embedder.images.decode import Region as Region
