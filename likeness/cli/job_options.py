"""The options of jobs, which are fields of `JobSpec` and of its sections, and the job that they describe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.errors import UsageError
from likeness.cli.model_options import Fields, fields_of, model_of

if TYPE_CHECKING:
    from jobs.spec import JobSpec

_JOB, _RESOURCES, _BUDGET = (("jobs.spec", name) for name in ("JobSpec", "Resources", "IndexBudget"))

# Arguments, what only a file has, and what some commands have beside these or below.
_OTHERS = (
    "source collection resources index retention annotations searches notify metrics_file missing max_missing "
    "verify_hash column_types tiles max_reject_rate exif"
)

EMBEDDING = (
    Fields(*_JOB, but=_OTHERS),
    Fields(*_JOB, "column_types", metavar="COLUMN=TYPE,…"),
    Fields(*_JOB, "tiles", metavar="CxR"),
    Fields(*_RESOURCES, "device precision"),
)
"""What is embedded, and with which model."""
CLUSTER = (
    Fields(*_RESOURCES, "num_gpus actors cpus_per_actor accelerator_type actor_resources batch_size block_size"),
    Fields(*_JOB, "max_reject_rate exif"),
    Fields(*_BUDGET, "queries"),
    Fields(*_RESOURCES, "on address wait_for_nodes"),
)
"""How a job runs."""
OptionalSource = Annotated[str | None, typer.Argument(help="The source of the collection's images.")]
OptionalCollection = Annotated[str | None, typer.Argument(help="The collection: a folder or bucket prefix.")]
SpecOption = Annotated[Path | None, typer.Option(help="Read all options from a file such as deploy/job.yaml.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of Ray and its workers.")]


def job_spec(context: typer.Context, **more: Any) -> "JobSpec":
    """The job that a command's options describe; `more` are further fields. UsageError names the invalid ones."""
    from jobs.spec import IndexBudget, JobSpec, Resources

    options = {**context.params, **more}
    sections = {"resources": fields_of(Resources, options), "index": fields_of(IndexBudget, options)}
    return model_of(JobSpec, {**options, **sections})


def job_or_file(context: typer.Context, beside: set[str], **more: Any) -> "JobSpec":
    """The job of the file --spec, with which only --max-missing and the options `beside` it go; or `job_spec`."""
    from jobs.schedule.spec_file import read_spec

    path, missing = context.params["spec"], context.params["max_missing"]
    if path is None:
        if context.params["source"] is None or context.params["collection"] is None:
            raise UsageError("expected SOURCE and COLLECTION, or --spec FILE")
        return job_spec(context, **more)
    job = read_spec(path)
    sources = {name: context.get_parameter_source(name) for name in context.params}
    used = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    if wrong := sorted(used - beside - {"spec", "max_missing"}):
        names = ", ".join(name if name in ("source", "collection") else f"--{name.replace('_', '-')}" for name in wrong)
        raise UsageError(f"{names} cannot be combined with --spec, whose file describes the whole job: set it there")
    return job.model_copy(update={"max_missing": missing}) if "max_missing" in used else job
