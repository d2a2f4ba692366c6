"""Reads with imagecodecs the JPEGs that Pillow does not: of more than 8 bits, and JPEG-LS."""

from PIL import Image

from embedder.errors import ImageError
from embedder.images.formats import JpegFrame, jpeg_frame
from embedder.images.limits import ImageLimits, deep_cost

_BANDS = (1, 3, 4)


def open_jpeg(data: bytes, limits: ImageLimits) -> Image.Image:
    """The picture with 8 bits. Raises ImageError for a limit or a kind that is not supported."""
    frame = _frame(data)
    limits.check_pixels(frame.width, frame.height, 2 * frame.bands, len(data))
    limits.check_cost(deep_cost(frame.width, frame.height, 2 * frame.bands))
    if frame.bands not in _BANDS or (frame.bands == 4 and frame.bits > 8):
        raise ImageError("unsupported_format", f"{describe_jpeg(data)} is not supported; save it with 8 bits as RGB")
    if frame.bits == 8 and not frame.is_ls:
        raise SyntaxError("unreadable header")
    import imagecodecs

    from embedder.images.deep_pixels import image_of

    decode = imagecodecs.jpegls_decode if frame.is_ls else imagecodecs.jpeg8_decode
    image = image_of(decode(data), bits=None if frame.bits in (8, 16) else frame.bits)
    image.format = "JPEG"
    return image


def describe_jpeg(data: bytes) -> str:
    frame = _frame(data)
    return f"a {'JPEG-LS' if frame.is_ls else 'JPEG'} with {frame.bands} band(s) of {frame.bits} bits"


def _frame(data: bytes) -> JpegFrame:
    if (frame := jpeg_frame(data)) is None:
        raise SyntaxError("unreadable header")
    return frame
