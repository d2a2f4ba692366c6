"""Texts that people may search a collection with, as vectors of its model, to measure the recall of the index."""

from __future__ import annotations

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
from index.arrays import Vectors
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import EMBEDDING, text_array, vectors_of
from jobs.errors import OtherModelError, UsageError

logger = logging.getLogger(__name__)

_CAPTIONS = Path(__file__).with_name("captions.txt")
CAPTION_COLUMNS = ("caption", "captions", "text", "title", "alt", "description")
LABEL_COLUMNS = ("label", "labels")
_MAX_TEXTS, _MIN_TEXTS = 400, 50
_MAX_OWN = 200  # the rest is the same for every collection, to compare scores of texts with
_SAMPLES, _ROWS = 8, 512
_MAX_LENGTH = 300  # characters; a model reads no more of a text


def read_lines(path: str | Path, option: str) -> list[str]:
    """The lines of a text file, stripped, without empty ones. Raises UsageError if it cannot be read."""
    try:
        lines = Path(path).expanduser().read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # RuntimeError: there is no such ~user
        raise UsageError(f"{option} is {path}: expected a file of texts in UTF-8, one per line ({error})") from error
    return [line.strip() for line in lines if line.strip()]


def read_queries(path: str) -> list[str]:
    """The distinct texts of a file, one per line. Raises UsageError if it cannot be read or has too few."""
    texts = _distinct(read_lines(path, "--queries"))
    if len(texts) < _MIN_TEXTS:
        raise UsageError(f"--queries is {path}, with {len(texts)} texts: expected at least {_MIN_TEXTS}, one per line")
    return texts


@dataclass(frozen=True, kw_only=True)
class QueryTexts:
    """Makes the vectors of the operator's `texts`, or else of captions or labels of the `runs` (by default all),
    followed by at least as many everyday captions. `load` loads the model.
    """

    collection: Collection
    load: Callable[[ModelRecord], Embedder]
    runs: Sequence[RunManifest] | None = None
    texts: Sequence[str] = ()

    def __call__(self) -> npt.NDArray[np.float32] | None:
        """`(n, dim)` float32, unit norm; None if the model cannot embed texts or cannot be loaded here.

        If there are texts of the operator, raises EmbedderError or OtherModelError instead.
        """
        runs = self.collection.runs() if self.runs is None else self.runs
        model: ModelRecord = runs[-1].model
        if model.is_unknown:
            return None
        texts = _evenly_spaced(self.texts)
        if not texts:
            live = LiveRows.of_runs(self.collection.storage, runs)
            everyday = _CAPTIONS.read_text("utf-8").splitlines()
            own = [*collection_texts(live), *everyday][:_MAX_OWN]
            texts = [*own, *everyday[_MAX_OWN - _MAX_TEXTS :]]
        try:
            return self.load(model).embed_texts(texts[:_MAX_TEXTS])
        except (EmbedderError, OtherModelError) as error:
            if self.texts:
                raise
            if not isinstance(error, UnsupportedInputError):
                logger.warning("searches by words are not measured, because the model cannot be loaded: %s", error)
            return None


def collection_texts(live: LiveRows) -> Sequence[str]:
    """Distinct captions or labels of a sample of the images, at most 200; empty if there is no column of them."""
    name = next((name for name in (*CAPTION_COLUMNS, *LABEL_COLUMNS) if name in live.schema.names), None)
    if name is None or not pa.types.is_string(live.schema.field(name).type):
        return []
    values: list[Any] = sample_rows(live).read([name])[name].to_pylist()
    return _evenly_spaced(_distinct(value for value in values if value), _MAX_OWN)


def sample_rows(live: LiveRows, places: int = _SAMPLES, rows: int = _ROWS) -> LiveRows:
    """Up to `rows` from each of a few places, so that few files are read."""
    starts = np.linspace(0, max(0, len(live) - rows), places).astype(np.int64)
    return live.take(np.unique(np.concatenate([range(start, min(start + rows, len(live))) for start in starts])))


def sample_vectors(live: LiveRows) -> npt.NDArray[np.float32]:
    """The vectors of such a sample, `(n, dim)` float32."""
    return vectors_of(sample_rows(live).read([EMBEDDING])[EMBEDDING].drop_null())


def stored_vectors(live: LiveRows, ids: Iterable[str]) -> dict[str, Vectors]:
    """The vectors of those of these images that are embedded, by id."""
    wanted = pa.table({"image_id": text_array(ids)})
    sql = f"SELECT seq FROM {live.sql} SEMI JOIN wanted USING (image_id) WHERE error_reason IS NULL ORDER BY seq"
    seqs = np.asarray(live.catalog.table(sql, wanted=wanted)["seq"], np.int64)
    if not len(seqs):
        return {}
    rows = LiveRows.at(live.catalog, seqs).read(["image_id", EMBEDDING])
    return dict(zip(map(str, rows["image_id"].to_pylist()), vectors_of(rows[EMBEDDING]), strict=True))


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(each.strip()[:_MAX_LENGTH] for each in texts) if text]


def _evenly_spaced(texts: Sequence[str], limit: int = _MAX_TEXTS) -> Sequence[str]:
    """At most `limit` texts, evenly spaced."""
    return texts[:: max(1, len(texts) // limit)][:limit]
