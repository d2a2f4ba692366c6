"""Chooses the colours of groups on a map: the nearer two groups are, the more their colours differ."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PALETTE = (
    *("#4363d8", "#f58231", "#3cb44b", "#e6194b", "#911eb4", "#21b6d6", "#d9a400", "#f032e6"),
    *("#9a6324", "#2a8c82", "#f48fb1", "#8fbf1f", "#8c1c13", "#a08cff", "#6b7a00"),
)
"""Colours that show on white and on black."""

# From linear sRGB to OKLab, where distances match perceived ones: bottosson.github.io/posts/oklab
_TO_LMS = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def group_colours(centres: npt.NDArray[np.float64]) -> list[str]:
    """A colour of its own for each group by its position, `(n, 2)`; earlier groups choose first. n is at most 15."""
    differences = colour_distances(PALETTE) + 0.01
    chosen: list[int] = []
    for number, centre in enumerate(centres):
        squares = np.square(centres[:number] - centre).sum(axis=1) + 1e-9
        clash = (1 / (squares[:, np.newaxis] * differences[chosen] ** 2)).sum(axis=0)
        clash[chosen] = np.inf
        chosen.append(int(np.argmin(clash)))
    return [PALETTE[colour] for colour in chosen]


def colour_distances(colours: Sequence[str]) -> npt.NDArray[np.float64]:
    """Perceived difference of colours such as "#4363d8", `(n, n)`: 0.02 is hardly visible, black to white is 1."""
    srgb = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab = np.cbrt(linear @ np.array(_TO_LMS).T) @ np.array(_TO_LAB).T
    distances: npt.NDArray[np.float64] = np.linalg.norm(lab[:, np.newaxis] - lab, axis=2)
    return distances
