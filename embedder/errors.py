"""Errors of the package.

EmbedderError
├── Rejected                one picture cannot be used; the others are not affected
│   ├── ImageError          stage "decode"
│   ├── FetchError          stage "fetch"
│   └── EmbedError          stage "embed": the user's own class has no vector for the picture
└── ModelError              the model cannot be loaded, or cannot be used in this way
    ├── ModelNotFoundError  no such folder, no such hub id, or no network to get it
    └── UnsupportedInputError
                            it cannot embed texts, or pictures; the message says what works instead
"""

import re
from typing import Any, ClassVar


class EmbedderError(Exception):
    """Base of all errors that this package raises on purpose."""


class Rejected(EmbedderError):  # noqa: N818 (the rows, the CLI and the reports use this word)
    """`reason` is a stable snake_case slug to count and filter by. `retryable` if the picture may work later.

    Raise a subclass: each sets its own `stage`.
    """

    stage: ClassVar[str]

    def __init__(self, reason: str, message: str, *, retryable: bool = False) -> None:
        # Arrow takes no lone surrogates, which a message with a file's name may have.
        message = message.encode("utf-8", "replace").decode()
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable

    def __reduce__(self) -> tuple[Any, ...]:
        # By default exceptions are unpickled from `args`, which only hold the message.
        return type(self), (self.reason, self.message), {"retryable": self.retryable}


class ImageError(Rejected):
    stage = "decode"


class FetchError(Rejected):
    stage = "fetch"


class EmbedError(Rejected):
    stage = "embed"


def reason_label(reason: str) -> str:
    """A reason as a metric's label: `http_404` becomes `http_4xx`, since each status would stay a series forever."""
    return re.sub(r"^http_(\d)\d\d$", r"http_\1xx", reason)


class ModelError(EmbedderError): ...


class ModelNotFoundError(ModelError): ...


class UnsupportedInputError(ModelError): ...
