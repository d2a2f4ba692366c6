"""The number of replicas of a deployment."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Replicas:
    """`least` at all times, and up to `most` under load. Written "2", or "1:4"."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse `2` or `1:4`. ValueError for anything but a number from 1, or two such numbers, LEAST:MOST."""
        least, colon, most = str(text).partition(":")
        try:
            replicas = cls(int(least), int(most if colon else least))
        except ValueError:
            replicas = cls(0, 0)
        if not 1 <= replicas.least <= replicas.most:
            raise ValueError("expected a number of replicas, such as 2, or LEAST:MOST, such as 1:4")
        return replicas
