"""The `embed` command from source to closing table: the listing, the model, Ray, the job."""

from collections import Counter

import pyarrow as pa
from rich.console import Console
from rich.markup import escape

from embedder.checkpoint import Checkpoint
from index.clouds import without_secrets
from index.collection import Collection
from index.lease import writing
from index.records import ModelRecord
from index.storage import Storage, place
from jobs.carry_out import carry_out
from jobs.commit import commit
from jobs.plan import make_plan, replaced_warning
from jobs.reembed_model import wanted_model
from jobs.report import EmbedReport, embed_table
from jobs.request import EmbedRequest
from jobs.sources import left_out_warning, list_images


def run_embed(request: EmbedRequest, console: Console) -> EmbedReport:
    """Embed a source into a collection; cheap checks come first, so that a mistake shows at once."""
    with console.status(f"listing {without_secrets(request.source)}"):
        left_out = Counter[str]()
        listing = list_images(request.source, extensions=request.extensions, left_out=left_out)
    if left_out:
        console.print(f"[yellow]{escape(left_out_warning(left_out))}", soft_wrap=True)
    # Absolute, without the credentials that a URI may hold, and the same however it is written.
    source = place(Storage.open(request.source).location)
    with console.status(f"reading the model {request.load.model}"):
        # Before the collection is made: a mistake in its name leaves none behind.
        model = wanted_model(Collection.planned(request.collection), request.load)
    with writing(Collection.create_or_open(request.collection), "embed") as collection:
        return _run(request, listing, source, model, collection, console)


def _run(
    request: EmbedRequest,
    listing: pa.Table,
    source: str,
    model: ModelRecord,
    collection: Collection,
    console: Console,
) -> EmbedReport:
    plan = make_plan(listing, collection, source, model)
    console.print(f"{plan.listing.num_rows:,} images listed, {plan.todo.num_rows:,} to embed with {model.id}")
    replaced = plan.replaced
    if replaced.num_rows:
        console.print(f"[yellow]{escape(replaced_warning(replaced))}")
    if plan.done:
        report = EmbedReport.of(plan)
    else:
        load = request.load
        crop = Checkpoint.find(load.model, load.revision).preprocessing.crop if plan.todo.num_rows else None
        [written] = carry_out(request, [plan], collection, console, load=load, crop=crop)
        commit(collection, [written], request.options.max_reject_rate)
        report = written.report
    console.print(embed_table(report))
    return report
