"""Whatever happened to sources and jobs, planning decides about every image as the reference model does."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from embedder.fetch import Fetcher
from index.collection import Collection
from index.collection.catalog.catalog import Catalog
from jobs.embedding.commit import commit
from jobs.errors import UsageError
from jobs.planning.changes import SourceChange, compare
from jobs.planning.decide import Decisions, PlannedJob
from jobs.planning.known_rows import write_known
from jobs.sources.listing import UNREADABLE
from jobs.sources.stored_listing import Listing
from tests.jobs.planning.decisions import WHYS
from tests.jobs.planning.reference_plan import ReferencePlan
from tests.support.collections.run_plans import ids_to_delete
from tests.support.collections.storage_steps import KilledError, at, is_number, kill
from tests.support.nights.plan_history import History, Night

NIGHTS = 6
HISTORIES = 50
"""In each test."""


_DECISIONS = """
SELECT image_id, coalesce(action, 'keep') AS action, coalesce(why, 'unchanged') AS why,
       coalesce(status, 'unchanged') AS status
FROM images LEFT JOIN decisions USING (number)
"""


def decisions_of(change: SourceChange, catalogs: Sequence[Catalog]) -> dict[str, tuple[str, str, str]]:
    """The action of each image by id, why, and its status; without images that are gone and kept."""
    rows = (each for catalog in catalogs for each in catalog.rows(_DECISIONS))
    found = {str(each["image_id"]): (each["action"], each["why"], each["status"]) for each in rows}
    return found | dict.fromkeys(ids_to_delete(change.plans[0]), ("delete", "gone", "missing"))


def counts_of(plan: ReferencePlan, night: Night) -> dict[str, int]:
    """The fields of `Counts`, and of `SourceChange`."""
    actions, whys, statuses = (Counter(each[at] for each in plan.decisions.values()) for at in range(3))
    uris = {str(image["image_id"]): image["uri"] for image in night.images}
    missing = plan.own - uris.keys()
    kept = [plan.live[name] for name in missing if plan.decisions[name].action != "delete"]
    taken = [(plan.live[name]["uri"], uris[name]) for name in plan.live.keys() & uris.keys() - plan.own]
    return {
        "listed": len(plan.decisions) - statuses["missing"],
        **{name: statuses[name] for name in ("unchanged", "new", "changed", "retried", "other_model")},
        **{name: whys[name] for name in ("resumed", "refused", "filtered", "moved")},
        **{"reused": actions["copy"], "to_embed": actions["embed"], "deleted": actions["delete"]},
        "missing": len(missing),
        "replaced": sum(None not in pair and len({*pair}) == 2 for pair in taken),
        **{"rows": len(plan.own), "others": len(plan.live) - len(plan.own)},
        "kept": sum(row["error_reason"] is None for row in kept),
    }


def compared(history: History, night: Night, listing: Listing) -> tuple[SourceChange, list[Catalog]]:
    """The changes, and a catalog with the decisions for each plan."""
    job, made = night.job, list[Catalog]()

    class Recorded(Decisions):
        def __init__(self, listing: Listing, *arguments: Any) -> None:
            super().__init__(listing, *arguments)
            made.append(listing.catalog)

    with patch("jobs.planning.changes.Decisions", Recorded):
        change = compare(
            listing,
            history.collection.snapshot(),
            PlannedJob(
                source=job.source,
                model=night.model,
                may_delete=job.missing == "delete"
                and not any(image["error_reason"] == UNREADABLE for image in night.images),
                verify_hash=job.verify_hash,
                image_filter=night.image_filter,
                postponed=night.postponed,
            ),
        )
    return change, made[-len(change.plans) :]


def assert_agrees(change: SourceChange, catalogs: Sequence[Catalog], expected: ReferencePlan, night: Night) -> None:
    wanted = {name: tuple(each) for name, each in expected.decisions.items() if each[:2] != ("keep", "gone")}
    assert decisions_of(change, catalogs) == wanted
    counts = asdict(change.counts) | {"rows": change.rows, "others": change.others, "kept": change.kept}
    assert counts == counts_of(expected, night)


def live_through(history: History) -> Counter[str]:
    """Compare the plans of every night, then carry them out. Returns how often there was each reason."""
    seen = Counter[str]()
    for _ in range(NIGHTS):
        history.sources.change()
        night = history.night()
        with patch.object(Fetcher, "download", history.sources.download):
            listing = Listing.of([night.listing])
            change, catalogs = compared(history, night, listing)
            expected = ReferencePlan(history.runs(), night.images, night.job)
        assert_agrees(change, catalogs, expected, night)
        seen.update(each.why for each in expected.decisions.values())
        # A filter that keeps none of the images is refused.
        killed = at(is_number(night.killed_after), after=True, action=kill) if night.killed_after else nullcontext()
        with suppress(KilledError, UsageError), killed:
            plans = [write_known(plan, history.collection) for plan in change.plans]
            commit(history.collection, [history.write(plan, night) for plan in plans if not plan.done], 1.0)
    return seen


@contextmanager
def small_and_fast() -> Iterator[None]:
    """Blocks of few rows, one thread for a few small files, and no records of visits to web addresses."""
    with (
        patch("jobs.planning.known_rows.BLOCK", 2),
        patch("index.collection.row_files._THREADS", 1),
        patch("jobs.embedding.commit.record_fetches", lambda *_, **__: None),
    ):
        yield


QUICK = range(2)
SLOW = pytest.param(range(50, 74), marks=pytest.mark.slow)
LONG = [pytest.param(range(first, first + HISTORIES), marks=pytest.mark.long) for first in range(0, 2_000, HISTORIES)]


@pytest.mark.parametrize("seeds", [QUICK, SLOW, *LONG], ids=str)
def test_every_image_gets_its_action_for_the_same_reason_as_in_the_reference_model(
    tmp_path: Path, seeds: range
) -> None:
    seen = Counter[str]()
    for seed in seeds:
        history = History(Collection.create_or_open(str(tmp_path / str(seed))), seed)
        try:
            with small_and_fast():
                seen += live_through(history)
        except BaseException as error:
            error.add_note(f"history {seed}:\n" + "\n".join(history.sources.log))
            raise
    assert seen.keys() == WHYS.keys() or (seeds == QUICK and seen.keys() < WHYS.keys())
