"""Errors of the package.

EmbedderError
├── Rejected                one picture cannot be used; the others go on
│   ├── ImageError          stage "decode"
│   ├── FetchError          stage "fetch"
│   └── EmbedError          stage "embed"
└── ModelError              the model cannot be loaded, or not used in this way
    ├── ModelNotFoundError  no such folder, no such hub id, or no network to get it
    └── UnsupportedInputError
                            it embeds no texts, or no pictures
"""

import re
from typing import Any, ClassVar


class EmbedderError(Exception):
    """Base of everything that this package raises on purpose."""


class Rejected(EmbedderError):  # noqa: N818 (the word that the rows, the CLI and the reports use)
    """`reason` is a stable snake_case slug, to count and filter by; `retryable`: the same picture may work later.

    `stage` belongs to the class: raise a subclass.
    """

    stage: ClassVar[str]

    def __init__(self, reason: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args` alone, which hold the message only.
        return type(self), (self.reason, self.message), {"retryable": self.retryable}


class ImageError(Rejected):
    stage = "decode"


class FetchError(Rejected):
    stage = "fetch"


class EmbedError(Rejected):
    """A class of the user's own has no vector for the picture."""

    stage = "embed"


def folded(reason: str) -> str:
    """`http_404` as `http_4xx`, to be counted: hosts answer with any number, and each would be a series for good."""
    return re.sub(r"^http_(\d)\d\d$", r"http_\1xx", reason)


class ModelError(EmbedderError):
    """A model cannot be loaded, or cannot do what was asked of it."""


class ModelNotFoundError(ModelError):
    """There is no model by that name, or no way to reach it."""


class UnsupportedInputError(ModelError):
    """The model embeds no inputs of this kind; the message says what works instead."""
