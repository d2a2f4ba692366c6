"""Quality measures of a picture. They are taken at a fixed size, so they do not depend on the picture's own.

`sharpness`: variance of the Laplacian of the luma, up to a few thousand (Pech-Pacheco et al., 2000). `brightness` and
`contrast`: mean and standard deviation of the luma, 0 … 1. `entropy`: of the luma's histogram, 0 … 8 bits.
`colourfulness`: 0 for grey, above 100 for gaudy (Hasler and Süsstrunk, 2003). `near_uniform`: no channel varies.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from embedder.images.decode import CropSpec

MEASURES: Final = ("sharpness", "brightness", "contrast", "entropy", "colourfulness", "near_uniform")
MEASURED_CROP: Final = CropSpec(side=224, shortest_edge=None)
"""The whole picture, squashed. Smaller pictures are enlarged, which lowers their sharpness."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_NEAR_UNIFORM = 0.02  # 1 is black to white; noise and compression of a plain picture stay below this


def measure(image: npt.NDArray[np.uint8]) -> dict[str, float | bool]:
    """The values of `MEASURES` for a crop by `MEASURED_CROP`, `(side, side, 3)` RGB."""
    rgb = image.astype(np.float32)
    luma = rgb @ _LUMA
    inner = luma[1:-1, 1:-1]
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * inner
    shares = np.bincount(np.rint(luma).astype(np.int64).ravel(), minlength=256) / luma.size
    shares = shares[shares > 0]
    red_green = rgb[..., 0] - rgb[..., 1]
    yellow_blue = (rgb[..., 0] + rgb[..., 1]) / 2 - rgb[..., 2]
    spread = np.hypot(red_green.std(), yellow_blue.std())
    mean = np.hypot(red_green.mean(), yellow_blue.mean())
    return {
        "sharpness": _rounded(laplacian.var(), 2),
        "brightness": _rounded(luma.mean() / 255, 4),
        "contrast": _rounded(luma.std() / 255, 4),
        "entropy": _rounded(abs((shares * np.log2(shares)).sum()), 4),
        "colourfulness": _rounded(spread + 0.3 * mean, 2),
        "near_uniform": bool((rgb.std(axis=(0, 1)) < _NEAR_UNIFORM * 255).all()),
    }


def _rounded(value: np.floating, digits: int) -> float:
    return round(float(value), digits)
