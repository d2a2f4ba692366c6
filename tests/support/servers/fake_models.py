"""Fake models for replicas."""

import os
import time
from pathlib import Path
from typing import Any

from api.search.engine import LoadModel
from embedder.errors import ModelError
from index.collection.records.model_record import ModelRecord
from tests.support.fake_embedder import FakeEmbedder


def one_fake(side: int = 32) -> LoadModel:
    """Always the same fake model. A nested function, which pickles by value."""
    return lambda record: FakeEmbedder(side=side)


def fakes(notes: Path) -> LoadModel:
    """Fake models by fingerprint. Loading one creates a file in `notes` named after the process id.

    The text "slow" takes until there is a file `go` next to `notes`. Nested functions and classes pickle by value.
    """

    def load(record: ModelRecord) -> FakeEmbedder:
        (notes / str(os.getpid())).touch()
        known = {fake.identity.fingerprint: fake for fake in (_Fake(side=32), _Fake(side=64))}
        return known[record.fingerprint]

    class _Fake(FakeEmbedder):
        def embed_texts(self, texts: Any) -> Any:
            if "unspeakable" in texts:
                raise ModelError("there are no words for it")
            while "slow" in texts and not (notes.parent / "go").exists():
                time.sleep(0.05)
            return super().embed_texts(texts)

    return load
