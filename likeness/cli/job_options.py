"""The options of jobs, which are fields of `JobSpec` and of its sections, and the job that they describe."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from likeness.cli.model_options import Fields, fields_of, model_of

if TYPE_CHECKING:
    from jobs.spec import JobSpec

_JOB, _RESOURCES, _BUDGET = (("jobs.spec", name) for name in ("JobSpec", "Resources", "IndexBudget"))

# Arguments, what only a file has, and what some commands have beside these or below.
_OTHERS = (
    "source collection resources index retention annotations notify metrics_file missing max_missing verify_hash "
    "column_types tiles max_reject_rate exif"
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
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the output of Ray and its workers.")]


def job_spec(context: typer.Context, **more: Any) -> "JobSpec":
    """The job that a command's options describe; `more` are further fields. UsageError names the invalid ones."""
    from jobs.spec import IndexBudget, JobSpec, Resources

    options = {**context.params, **more}
    sections = {"resources": fields_of(Resources, options), "index": fields_of(IndexBudget, options)}
    return model_of(JobSpec, {**options, **sections})
