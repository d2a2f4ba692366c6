"""Decodes the bytes of a picture into the uint8 crop that a model takes.

Cropping and resizing are one step, rounded like the stock image processors. Transparent pictures are put on white
first, EXIF orientation is applied to the small crop, and large JPEGs, but no other formats, are decoded at reduced
scale.

A file of a few hundred bytes can take gigabytes and hours, and a thread that decodes it cannot be stopped, so pictures
are decoded in separate processes, in jobs and servers alike. Headers are checked first (`limits.py`). Normal pictures
have a process for each core; so have large ones, such as HEIC photos and screenshots in 4K, which yield to them. Heavy
ones, of more than two seconds or half a gigabyte, share a single other process, so nothing else waits for them. The
kernel kills a process whose picture takes too long, and processes end with their owner.
"""

from embedder.images.decode import CropSpec as CropSpec
from embedder.images.decode import Region as Region
