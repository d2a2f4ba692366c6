"""The request for an embedding job. Quick to import: torch and Ray come with the job itself."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from embedder.protocol import Embedder
from jobs.values import DEMO_MODEL, IMAGE_EXTENSIONS, model_named


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Loads the model where it is called: in an actor, on its machine. `batch_size` images go in a forward pass."""

    model: str
    revision: str | None = None
    device: str | None = None
    batch_size: int = 64

    def __call__(self) -> Embedder:
        from embedder.models.clip import ClipEmbedder

        # Ray gives a worker as many OpenMP threads as it has CPUs reserved, which is one. On a CPU the forward pass
        # should have the cores that decoding leaves free, and the kernel shares them out better than a fixed split.
        return ClipEmbedder.load(
            model_named(self.model),
            revision=self.revision,
            device=self.device,
            batch_size=self.batch_size,
            threads=os.cpu_count(),
        )

    def for_workers(self) -> Self:
        """The same on other machines, where the demo model may lie elsewhere."""
        return replace(self, model="demo") if self.model == str(DEMO_MODEL) else self

    @property
    def memory(self) -> int:
        """Bytes of host memory of a process that has it loaded: measured, 1 GiB beside the weights."""
        from embedder.models.checkpoint import Checkpoint

        return 2**30 + sum(path.stat().st_size for path in Checkpoint.find(self.model, self.revision).weights)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How the job runs.

    `block_size` rows are embedded and written together; a crash can cost each actor so many. `max_reject_rate` is the
    share of the listed images that may be rejects. `draft` allows large JPEGs to be decoded at reduced scale.
    """

    block_size: int = 256
    decode_threads: int = 2
    draft: bool = True
    max_reject_rate: float = 0.05


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A source, its collection, and what the job runs on.

    `actors` is (least, most), `num_gpus` the share of a GPU for each; None: the job chooses. `actor_resources` are the
    amounts that each takes of a cluster's own named resources.
    """

    source: str
    collection: str
    options: EmbedOptions = EmbedOptions()
    extensions: Sequence[str] = IMAGE_EXTENSIONS
    actors: tuple[int, int] | None = None
    num_gpus: float | None = None
    accelerator_type: str | None = None
    actor_resources: Mapping[str, float] = field(default_factory=dict)
    address: str | None = None
    verbose: bool = False
