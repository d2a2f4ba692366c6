"""What a collection holds: its facts, as JSON has them, and their tables for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich import filesize
from rich.console import Group

from index.collection import Collection
from index.collection.annotations import list_annotations, rows_with_values
from index.collection.cache.file_cache import first_damage
from index.collection.catalog.catalog import Catalog
from index.collection.checks import Checks
from index.collection.live_rows import LiveRows
from index.collection.records.run_manifest import RunManifest
from index.collection.records.version_manifest import Option
from index.collection.rows import EMBEDDING, FILTERED, FIXED_COLUMNS, REJECT_COLUMNS
from index.filters.columns import type_name
from index.versions.files import version_files
from index.versions.servable import collection_model, live_manifest, live_version
from likeness.cli.tables.text_table import TextTable


def annotation_facts(collection: Collection) -> list[dict[str, Any]]:
    """What `likeness columns` prints, ready for JSON."""
    annotations = list_annotations(collection)
    if not annotations:
        return []
    version, snapshot = live_manifest(collection), collection.snapshot()
    indexed = version.annotations if version else {}
    model = collection_model(snapshot)
    images = snapshot.live.of_model(model) if model else snapshot.live
    facts = []
    for annotation in annotations:
        rows, last_run = annotation.rows, annotation.runs[-1]
        [counts] = images.catalog.table(_VALUES.format(images=images.sql, values=rows.sql)).to_pylist()
        facts.append(
            {
                "name": annotation.name,
                "columns": {name: str(rows.schema.field(name).type) for name in rows.metadata},
                "predictor": last_run.model.id,
                "fingerprint": last_run.model.fingerprint,
                **{name: counts[name] for name in ("images", "rejected")},
                "reasons": {each["reason"]: each["count"] for each in counts["reasons"]},
                "without": counts["without"],
                "indexed": indexed.get(annotation.name) == annotation.run_ids,
            }
        )
    return facts


_VALUES = """
WITH found AS (
    SELECT v.image_id IS NOT NULL AS found, v.error_reason IS NOT NULL AS rejected, v.error_message AS reason
    FROM {images} AS i
    LEFT JOIN {values} AS v ON v.image_id = i.image_id AND v.content_hash IS NOT DISTINCT FROM i.content_hash
    WHERE i.error_reason IS NULL
), reasons AS (
    SELECT coalesce(reason, 'None') AS reason, count(*) AS count FROM found WHERE rejected
    GROUP BY ALL ORDER BY count DESC, reason LIMIT 3
)
SELECT count(*) FILTER (found AND NOT rejected) AS images, count(*) FILTER (rejected) AS rejected,
       count(*) FILTER (NOT found) AS without,
       coalesce((SELECT list(reasons ORDER BY count DESC, reason) FROM reasons), []) AS reasons
FROM found
"""


def columns_table(facts: Sequence[Mapping[str, Any]]) -> Group:
    """These facts, and the reasons of rejects."""
    names = ("name", "columns", "predictor", "images", "rejected", "without", "in the index")
    rows = [
        (
            *(each["name"], [*each["columns"]], each["predictor"]),
            *(each["images"], each["rejected"], each["without"], "yes" if each["indexed"] else "no"),
        )
        for each in facts
    ]
    reasons = [(each["name"], count, reason) for each in facts for reason, count in each["reasons"].items()]
    rejects = [TextTable(("name", "rejected", "reason"), reasons, right={1})] if reasons else []
    return Group(TextTable(names, rows, right={3, 4, 5}), *rejects)


REJECTS_HEADER: Final = ("image", "reason", "message")


def reject_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["image_id"], row["error_reason"], " ".join(row["error_message"].split())


def collection_facts(collection: Collection) -> dict[str, Any]:
    """What `likeness info` prints, ready for JSON."""
    snapshot = collection.snapshot()
    live = snapshot.live
    catalog = live.catalog
    [counts] = catalog.table(_COUNTS).to_pylist()
    model = collection_model(snapshot)
    return {
        "collection": collection.location,
        **counts,
        "columns": _columns(live, rows_with_values(list_annotations(collection))),
        "web_addresses": _address_facts(collection, catalog),
        "runs": len(snapshot.committed),
        "unfinished_runs": len(snapshot.unfinished),
        "model": model.model_dump() if model else None,
        "index": _live_facts(collection, snapshot.committed),
        "versions": collection.versions(),
    }


def _columns(live: LiveRows, annotations: Iterable[LiveRows]) -> dict[str, str]:
    """The columns that a filter can name, with their types."""
    schemas = [(live.catalog.schema_of(live.runs), [*FIXED_COLUMNS, *live.metadata])]
    schemas += [(rows.schema, rows.metadata) for rows in annotations]
    columns = {name: type_name(schema.field(name).type) for schema, names in schemas for name in names}
    return {name: kind for name, kind in columns.items() if name not in (EMBEDDING, *REJECT_COLUMNS)}


_COUNTS = f"""
SELECT count(*) FILTER (error_reason IS NULL) AS embedded,
       count(*) FILTER (error_reason = '{FILTERED}') AS filtered,
       count(*) FILTER (error_reason <> '{FILTERED}') AS rejected
FROM live_rows
"""
_ADDRESSES = """
SELECT count(*) AS visited, count(*) FILTER (gone > 0) AS gone, count(*) FILTER (failed > 0) AS failed,
       max(checked) AS last_visit
FROM {checks} SEMI JOIN live_rows USING (uri)
"""


def _address_facts(collection: Collection, catalog: Catalog) -> dict[str, Any] | None:
    """Of the images' web addresses, if there are any: how many were gone or failed when they were last visited."""
    checks = Checks(collection)
    [facts] = catalog.table(_ADDRESSES.format(checks=checks.sql)).to_pylist()
    return {**facts, "last_visit": facts["last_visit"].isoformat(timespec="seconds")} if facts["visited"] else None


def facts_table(facts: Mapping[str, Any]) -> Group:
    """Facts by name, nested ones with both names; then a line for each segment and for each kind of index."""
    facts = {**facts, "columns": [f"{name} ({kind})" for name, kind in facts["columns"].items()]}
    index = facts["index"]
    if not index or "segments" not in index:
        return Group(TextTable((), _flat(facts)))
    shown = {**index, "memory": filesize.decimal(index["memory"])}
    shown |= {f"recall@{k}": f"{recall:.4f}" for k, recall in shown.pop("recall").items()}
    shown |= {f"{kind} recall@10": _kind_line(each) for kind, each in shown.pop("kinds").items() if kind != "image"}
    segments, choice = shown.pop("segments"), [Option(**option) for option in shown.pop("choice")]
    header = ("segment", "kind", "images", "tombstones", "memory")
    rows = [
        (name, each["kind"], each["ntotal"], each["tombstones"], filesize.decimal(each["memory"]))
        for name, each in segments.items()
    ]
    overview = TextTable((), _flat({**facts, "index": shown}))
    return Group(overview, "", TextTable(header, rows), "", choice_table(choice))


def _kind_line(kind: Mapping[str, Any]) -> str:
    wider = f", looking {kind['width']:.3g} times as far as for an image" if kind["width"] > 1 else ""
    return f"{kind['recall']:.4f}{wider}"


def choice_table(choice: Sequence[Option]) -> TextTable:
    """The kinds of index that were considered, and why one was chosen."""
    return TextTable(
        ("index", "memory", "", "why"),
        [(each.name, filesize.decimal(each.memory), "chosen" if each.chosen else "", each.why) for each in choice],
    )


def _live_facts(collection: Collection, committed: Sequence[RunManifest]) -> dict[str, Any] | None:
    """The live version and its `damage`; nothing else is known if its manifest cannot be read."""
    live = live_version(collection)
    if live.damage:
        return {"version": live.name, "damage": str(live.damage)}
    if (manifest := live.manifest) is None:
        return None
    damage = first_damage(collection.storage, version_files(manifest), verify=False)
    runs = [run.run_id for run in committed]
    stored = {"base", "settings", "ntotal", "recall", "kinds", "latency_ms", "queries_per_second", "choice"}
    return {
        "version": manifest.version,
        "created_at": manifest.created_at.isoformat(timespec="seconds"),
        "up_to_date": manifest.runs == runs,
        "lost_runs": [run for run in manifest.runs if run not in runs],
        "damage": " ".join(damage) if damage else None,
        **manifest.model_dump(include=stored),
        "kind": manifest.kind,
        "memory": manifest.memory,
        "tombstones": sum(segment.ntotal - segment.live for segment in manifest.segments),
        "segments": {
            segment.name: {
                "kind": segment.factory,
                "ntotal": segment.ntotal,
                "tombstones": segment.ntotal - segment.live,
                "memory": segment.memory,
            }
            for segment in manifest.segments
        },
    }


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    rows = list[tuple[str, object]]()
    for name, value in facts.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name} ")
        else:
            rows.append((f"{prefix}{name}".replace("_", " "), value))
    return rows
