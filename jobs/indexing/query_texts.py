"""Texts that people may search a collection with, in its own model: to measure the index with."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedder.errors import EmbedderError, UnsupportedInputError
from embedder.protocol import Embedder
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records import ModelRecord, RunManifest
from jobs.errors import OtherModelError, UsageError

logger = logging.getLogger(__name__)

_CAPTIONS = Path(__file__).with_name("captions.txt")
_COLUMNS = ("caption", "captions", "text", "title", "alt", "description", "label", "labels")
_MAX_TEXTS, _MIN_TEXTS = 400, 50
_MAX_OWN = 200  # the others are the same for every collection: scores of texts are compared with theirs
_SPOTS, _ROWS = 8, 512
_MAX_LENGTH = 300  # characters; a model reads no more of a text


def read_queries(path: str) -> list[str]:
    """The texts of a file, one a line. UsageError when it cannot be read, or has too few."""
    try:
        lines = Path(path).expanduser().read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--queries is {path}: expected a file of texts in UTF-8, one a line ({error})") from error
    texts = _different(lines)
    if len(texts) < _MIN_TEXTS:
        raise UsageError(f"--queries is {path}, with {len(texts)} texts: expected {_MIN_TEXTS} or more, one a line")
    return texts


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class QueryTexts:
    """Makes the vectors: of the texts `named` by the operator, else of captions or labels that the newest `runs` have,
    and then of everyday captions, as many or more. `load` loads their model.
    """

    collection: Collection
    load: Callable[[ModelRecord], Embedder]
    runs: Sequence[RunManifest] | None = None
    named: Sequence[str] = ()

    def __call__(self) -> npt.NDArray[np.float32] | None:
        """`(n, dim)` float32, unit norm; None when the model has no text side, or cannot be loaded here.

        EmbedderError and OtherModelError when texts are named and it has none, or cannot be loaded.
        """
        runs = self.collection.runs() if self.runs is None else self.runs
        model: ModelRecord = runs[-1].model
        if model.is_unknown:
            return None
        texts = _some(self.named)
        if not texts:
            live = LiveRows.of_runs(self.collection.storage, runs)
            everyday = _CAPTIONS.read_text("utf-8").splitlines()
            texts = [*[*own_texts(live), *everyday][:_MAX_OWN], *everyday[_MAX_OWN - _MAX_TEXTS :]]
        try:
            return self.load(model).embed_texts(texts[:_MAX_TEXTS])
        except (EmbedderError, OtherModelError) as error:
            if self.named:
                raise
            if not isinstance(error, UnsupportedInputError):
                logger.warning("searches by words are not measured, because the model cannot be loaded: %s", error)
            return None


def own_texts(live: LiveRows) -> Sequence[str]:
    """Different captions or labels of some of the images, at most 200; none when no column has any."""
    name = next((name for name in _COLUMNS if name in live.schema.names), None)
    if name is None or not pa.types.is_string(live.schema.field(name).type):
        return []
    values: list[Any] = sample_rows(live).read([name])[name].to_pylist()
    return _some(_different(value for value in values if value), _MAX_OWN)


def sample_rows(live: LiveRows) -> LiveRows:
    """Some thousand rows, from a few places, so that few files are read."""
    starts = np.linspace(0, max(0, len(live) - _ROWS), _SPOTS).astype(np.int64)
    return live.take(np.unique(np.concatenate([np.arange(start, min(start + _ROWS, len(live))) for start in starts])))


def _different(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(each.strip()[:_MAX_LENGTH] for each in texts) if text]


def _some(texts: Sequence[str], limit: int = _MAX_TEXTS) -> Sequence[str]:
    """At most so many, from all over."""
    return texts[:: max(1, len(texts) // limit)][:limit]
