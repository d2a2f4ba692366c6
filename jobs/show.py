"""Tables of matches, rejects and facts for the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.markup import escape
from rich.table import Table

from index.collection import Collection
from index.live import LiveRows
from index.rows import newest
from index.search import Match
from jobs.plan import written_files

REJECT_COLUMNS = ("image_id", "uri", "error_stage", "error_reason", "error_message", "retryable")


def match_table(matches: Sequence[Match]) -> Table:
    """Rank, cosine, id and metadata of each match."""
    names = list(dict.fromkeys(name for match in matches for name in match.metadata))
    return rows_table(
        ("", "score", "image", *names),
        [
            (
                str(rank),
                f"{match.score:.3f}",
                match.image_id,
                *(_shown(match.metadata.get(name)) for name in names),
            )
            for rank, match in enumerate(matches, 1)
        ],
    )


def rows_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; whatever file names contain is shown as it is."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def list_rejects(collection: Collection, reason: str | None = None) -> list[dict[str, Any]]:
    """Images whose newest row is a reject, the rows of runs counted that were stopped or failed for too many."""
    last = max((run.run_id for run in collection.runs()), default="")
    older: list[pa.Table] = []
    newer: list[pa.Table] = []
    for run in collection.run_starts():
        files = written_files(collection, run)
        rows = LiveRows.of_files(collection.storage, files).read(REJECT_COLUMNS)
        (older if run.run_id < last else newer).append(rows)
    rows = pa.concat_tables([*older, collection.live_rows(REJECT_COLUMNS), *newer])
    rows = rows.take(newest([rows["image_id"]])[0])
    rows = rows.filter(pc.is_valid(rows["error_reason"]))
    if reason is not None:
        rows = rows.filter(pc.equal(rows["error_reason"], pa.scalar(reason)))
    return rows.sort_by("image_id").to_pylist()


def rejects_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Each reject with its reason; the counts are in the caption."""
    counts = Counter(str(row["error_reason"]) for row in rows)
    table = rows_table(
        ("image", "reason", "message"),
        [(row["image_id"], row["error_reason"], _one_line(row["error_message"])) for row in rows],
    )
    table.caption = ", ".join(f"{reason}: {count}" for reason, count in counts.most_common()) or "no rejects"
    return table


def collection_facts(collection: Collection) -> dict[str, Any]:
    """What `likeness info` says, ready for JSON."""
    summary = collection.summary()
    version = collection.read_version(summary.current) if summary.current else None
    return {
        "collection": collection.location,
        "embedded": summary.embedded,
        "rejected": summary.rejected,
        "runs": summary.runs,
        "unfinished_runs": summary.unfinished_runs,
        "model": summary.model.model_dump() if summary.model else None,
        "index": None
        if version is None
        else {
            "version": version.version,
            "ntotal": version.ntotal,
            "kind": ", ".join(sorted({segment.factory for segment in version.segments})),
            "recall": version.recall,
            "created_at": version.created_at.isoformat(timespec="seconds"),
            "up_to_date": version.runs == [run.run_id for run in collection.runs()],
        },
        "versions": summary.versions,
    }


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Facts by name; those within others with both names."""
    return rows_table(("", ""), list(_flat(facts)))


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name} ")
        else:
            rows.append((f"{prefix}{name}".replace("_", " "), _shown(value)))
    return rows


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
