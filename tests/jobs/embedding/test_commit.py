"""The end of a job: its runs are published together or not at all."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from index.collection import Collection
from index.collection.catalog.workspace import Workspace
from jobs.embedding.commit import WrittenRun, commit
from jobs.embedding.report import EmbedReport
from jobs.errors import TooManyRejectsError
from jobs.sources.listing import listing_table
from tests.support.collections.hand_made import MODEL, add_run, rows, unit_vectors
from tests.support.collections.run_plans import run_plan_of


def written(
    collection: Collection, image_id: str, *, rejected: bool = False, deletes: list[str] | None = None
) -> WrittenRun:
    """A run of a source of one image, with its row on disk."""
    source = f"/{image_id}"
    plan = run_plan_of(listing_table({"image_id": [image_id]}, {}), collection, source, MODEL)
    gone = Workspace(collection.location).store(f"SELECT 0 AS seq, unnest({deletes or []}) AS image_id")
    plan = replace(plan, deletes=gone)
    run = collection.start_run(source, MODEL)
    table = rows([], unit_vectors(0), rejected={image_id: "corrupt"}) if rejected else rows([image_id])
    report = EmbedReport.of(plan)
    report.embedded, report.rejected = int(not rejected), int(rejected)
    return WrittenRun(plan=plan, run=run, files=[collection.write_rows(run.run_id, "0001-x", table)], report=report)


def files(collection: Collection) -> list[str]:
    root = Path(collection.location) / "runs"
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_no_run_is_published_if_another_run_of_the_job_is_refused(collection: Collection) -> None:
    both = [written(collection, "a", deletes=["x"]), written(collection, "b", rejected=True)]
    before = files(collection)
    with pytest.raises(TooManyRejectsError, match="1 of 1 images were rejected"):
        commit(collection, both, 0.5)
    assert (collection.runs(), files(collection)) == ([], before)
    commit(collection, both, 1)
    assert len(collection.runs()) == 2


@pytest.mark.parametrize("changed", ["nothing", "a delete", "it is final", "it was final", "the uri"])
def test_a_run_that_failed_again_is_published_only_if_something_changed(collection: Collection, changed: str) -> None:
    def timed_out(*, retryable: bool = True) -> pa.Table:
        return rows([], unit_vectors(0), rejected={"a": "timeout"}, metadata={"retryable": [retryable]})

    before, now = timed_out(retryable=changed != "it was final"), timed_out(retryable=changed != "it is final")
    if changed == "the uri":
        before = before.set_column(1, "uri", pa.array(["elsewhere"]))
    add_run(collection, before)
    job = written(collection, "a", rejected=True, deletes=["x"] if changed == "a delete" else None)
    job = replace(job, files=[collection.write_rows(job.run.run_id, "0001-x", now)])
    published = commit(collection, [job], 1)
    assert [run.run_id for run in published] == ([] if changed == "nothing" else [job.run.run_id])
    assert len(collection.runs()) == 1 + len(published)
