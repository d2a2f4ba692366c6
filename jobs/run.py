"""The `embed` command from source to closing table: the listing, the model, Ray, the job."""

from contextlib import nullcontext
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape

from embedder.images import CropSpec
from embedder.protocol import ModelIdentity
from index.collection import Collection
from index.lease import writing
from index.records import ModelRecord
from index.storage import Storage
from jobs.plan import Plan, make_plan
from jobs.report import EmbedReport, ProgressBar, embed_table
from jobs.request import EmbedRequest
from jobs.sources import list_images


def run_embed(request: EmbedRequest, console: Console) -> EmbedReport:
    """Embed a source into a collection; cheap checks come first, so that a mistake shows at once."""
    with console.status(f"listing {request.source}"):
        listing = list_images(request.source, extensions=request.extensions)
    # Absolute, without the credentials that a URI may hold, and the same however the folder's slash is written.
    source = Storage.open(request.source).location.rstrip("/")
    with writing(Collection.create_or_open(request.collection), "embed") as collection:
        return _run(request, listing, source, collection, console)


def _run(
    request: EmbedRequest, listing: pa.Table, source: str, collection: Collection, console: Console
) -> EmbedReport:
    with console.status(f"reading the model {request.load.model}"):
        # Loaded here as well as in the actors: what it is decides what there is to do, and a mistake shows at once.
        loaded = replace(request.load, device="cpu")()
        model, crop = model_record(loaded.identity), loaded.crop
        del loaded
    plan = make_plan(listing, collection, source, model)
    console.print(f"{plan.listing.num_rows:,} images listed, {plan.todo.num_rows:,} to embed with {model.id}")
    replaced = plan.replaced
    if replaced.num_rows:
        first = replaced.slice(0, 1).to_pylist()[0]
        console.print(
            f"[yellow]{replaced.num_rows:,} ids are there already for images elsewhere and will be replaced; the "
            f"first is {escape(first['image_id'])}, so far {escape(first['uri'])}. A collection for each keeps both"
        )
    report = EmbedReport.of(plan) if plan.done else _embed(request, plan, collection, crop, console)
    console.print(embed_table(report))
    return report


def _embed(request: EmbedRequest, plan: Plan, collection: Collection, crop: CropSpec, console: Console) -> EmbedReport:
    # Imported late: Ray takes seconds, which a mistake in the request should not cost.
    from jobs.cluster import Pool, ray_cluster
    from jobs.embed import embed

    options = replace(request.options, decode_threads=_decode_threads(plan.todo))
    # A run that was stopped between its last block and its commit has nothing left for Ray to do.
    with ray_cluster(request.address, verbose=request.verbose) if plan.todo.num_rows else nullcontext():
        pool = Pool()
        if plan.todo.num_rows:
            pool = Pool.fitting(request.actors, request.num_gpus, request.accelerator_type)
        with ProgressBar(console, total=plan.todo.num_rows) as progress:
            try:
                return embed(
                    plan, collection, load=request.load, crop=crop, options=options, pool=pool, progress=progress
                )
            except KeyboardInterrupt:
                console.print("what was embedded is kept: the same command goes on with it")
                raise


def model_record(identity: ModelIdentity) -> ModelRecord:
    """A model's identity as the collection records it."""
    return ModelRecord(
        id=identity.model_id, revision=identity.revision, fingerprint=identity.fingerprint, dim=identity.dim
    )


def _decode_threads(todo: pa.Table) -> int:
    """Threads of a decode task: for local files one reads while the other decodes; the network has to be waited for."""
    remote = pc.match_substring_regex(todo["uri"].drop_null(), "^(https?|s3|gs|az)://")
    return 16 if pc.any(remote).as_py() else 2
