"""Random damage to pictures, and the reasons for which damaged ones are rejected."""

import numpy as np

REASONS = {"not_an_image", "unsupported_format", "truncated", "corrupt", "too_many_pixels", "out_of_memory"}


def damage(whole: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with flipped bits, other bytes, a part removed or the end cut off."""
    data = bytearray(whole)
    match rng.integers(4):
        case 0:
            return whole[: int(rng.integers(4, len(whole)))]
        case 1:  # near the front, where the structure is
            for at in rng.integers(4, min(200, len(data)), rng.integers(1, 6)):
                data[at] ^= 1 << int(rng.integers(8))
        case 2:
            for at in rng.integers(4, len(data), rng.integers(1, 40)):
                data[at] = int(rng.integers(256))
        case _:
            at = int(rng.integers(4, len(data)))
            del data[at : at + int(rng.integers(1, 50))]
    return bytes(data)
