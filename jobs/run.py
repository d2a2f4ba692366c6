"""The `embed` command from source to closing table: the listing, the model, Ray, the job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from embedder.protocol import ModelIdentity
from index.collection import Collection
from index.records import ModelRecord
from index.storage import Storage
from jobs.listing import IMAGE_EXTENSIONS
from jobs.plan import make_plan
from jobs.report import EmbedReport, ProgressBar, embed_table
from jobs.sources import list_images


@dataclass(frozen=True, kw_only=True)
class EmbedRequest:
    """What the `embed` command was asked for. None: the job chooses."""

    source: str
    collection: str
    model: str
    revision: str | None = None
    device: str | None = None
    num_gpus: float | None = None
    actors: tuple[int, int] | None = None
    accelerator_type: str | None = None
    batch_size: int = 64
    block_size: int = 256
    max_reject_rate: float = 0.05
    extensions: Sequence[str] = IMAGE_EXTENSIONS
    draft: bool = True
    address: str | None = None
    verbose: bool = False


def run_embed(request: EmbedRequest, console: Console) -> EmbedReport:
    """Embed a source into a collection; cheap checks come first, so that a mistake shows at once."""
    with console.status(f"listing {request.source}"):
        listing = list_images(request.source, extensions=request.extensions)
    source = Storage.open(request.source).location  # absolute, and without the credentials that a URI may hold
    collection = Collection.create_or_open(request.collection)
    # Imported late: torch and Ray take seconds, which a mistyped source should not cost.
    from jobs.cluster import ModelSource, Pool, ray_cluster
    from jobs.embed import EmbedOptions, embed

    load = ModelSource(
        model=request.model, revision=request.revision, device=request.device, batch_size=request.batch_size
    )
    with console.status(f"reading the model {request.model}"):
        # Loaded here as well as in the actors: what it is decides what there is to do, and a mistake shows at once.
        loaded = replace(load, device="cpu")()
        model, crop = model_record(loaded.identity), loaded.crop
        del loaded
    plan = make_plan(listing, collection, source, model)
    console.print(f"{plan.listing.num_rows:,} images listed, {plan.todo.num_rows:,} to embed with {model.id}")
    if plan.done:
        return _closed(EmbedReport.of(plan), console)
    with ray_cluster(request.address, verbose=request.verbose):
        pool = Pool.fitting(request.actors, request.num_gpus)
        options = EmbedOptions(
            batch_size=request.batch_size,
            block_size=request.block_size,
            actors=pool.actors,
            num_gpus=pool.num_gpus,
            accelerator_type=request.accelerator_type,
            draft=request.draft,
            decode_threads=_decode_threads(plan.todo),
            max_reject_rate=request.max_reject_rate,
        )
        with ProgressBar(console, total=plan.todo.num_rows) as progress:
            report = embed(plan, collection, load=load, crop=crop, options=options, progress=progress)
    return _closed(report, console)


def _decode_threads(todo: pa.Table) -> int:
    """Threads of a decode task: for local files one reads while the other decodes; the network has to be waited for."""
    remote = pc.match_substring_regex(todo["uri"].drop_null(), "^(https?|s3|gs|az)://")
    return 16 if pc.any(remote).as_py() else 2


def model_record(identity: ModelIdentity) -> ModelRecord:
    """A model's identity as the collection records it."""
    return ModelRecord(
        id=identity.model_id, revision=identity.revision, fingerprint=identity.fingerprint, dim=identity.dim
    )


def _closed(report: EmbedReport, console: Console) -> EmbedReport:
    console.print(embed_table(report))
    return report
