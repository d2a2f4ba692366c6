"""The command `select`. `app` registers it."""

from typing import Any

from likeness.cli.model_options import Fields, model_of, with_fields
from likeness.cli.options import CollectionArgument, console, error_console, open_collection

_SPEC = "jobs.curation.spec", "SelectSpec"
_FLAGS = {"n": "-n", "continue_": "--continue"}


@with_fields(
    Fields(*_SPEC, "n", flag="-n"),
    Fields(*_SPEC, "prune name diverse typical balance filter"),
    Fields(*_SPEC, "continue_", flag="--continue"),
)
def select(collection: CollectionArgument, **options: Any) -> None:
    """Choose images that represent a collection, or one of each group of near-equal images, and write the choice as
    columns.

    With -n, NAME is the rank of a pick, NAME_nearest that of an image's nearest pick, and NAME_score its cosine with
    that. With --prune, NAME says whether an image is kept, and NAME_duplicate_of which one is kept instead.

    Examples: `likeness select my-collection -n 1000 --name pick --balance label`,
    `likeness select my-collection --prune 0.95 --name keep`,
    `likeness search my-collection --filter '{"pick": {"$gt": 0}}' --sort pick`
    """
    from index.collection import writing
    from jobs.curation.select import Select
    from jobs.curation.spec import SelectSpec

    spec = model_of(SelectSpec, options, _FLAGS)
    opened = open_collection(collection)
    with writing(opened, "select") as leased, error_console.status("opening the index") as status:
        made = Select(
            collection=leased,
            spec=spec,
            console=console,
            progress=lambda done, total: status.update(f"{done:,} of {total:,} done"),
        ).run()
    if spec.prune is not None:
        line = f"{made.chosen:,} of {made.images:,} images kept, {made.images - made.chosen:,} pruned"
    else:
        line = f"{made.chosen:,} of {made.images:,} images picked, {made.new:,} of them now"
        line += f"; each image has a pick with a cosine of {made.coverage:.3f} or more"
    console.print(f"{spec.name}: {line}", highlight=False, soft_wrap=True)
