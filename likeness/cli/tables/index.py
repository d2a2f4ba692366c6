"""Tables about an index for the terminal: the choice, measurements, versions, removed files, and how labels agree."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType

from index.analysis.evaluation import DEPTHS, ClassFigures, Estimate, Evaluation
from index.collection.layout import MERGED
from index.collection.records.version_manifest import VersionManifest
from index.versions.promotion import Version
from index.versions.prune import Pruned
from jobs.values import counted
from likeness.cli.tables.text_table import TextTable

_MAX_CONFUSIONS = 10


def quality_table(manifest: VersionManifest) -> TextTable:
    segments = len(manifest.segments)
    rows = [
        ("measured with", f"{manifest.queries:,} images of the collection, themselves left out"),
        *((f"recall@{k}", f"{value:.4f}") for k, value in manifest.recall.items()),
        *((f"recall@10, {kind}", f"{each.recall:.4f}") for kind, each in manifest.kinds.items() if kind != "image"),
        *((f"latency {name}", f"{value:.2f} ms") for name, value in manifest.latency_ms.items()),
        ("queries/s", f"{manifest.queries_per_second:,.0f}"),
        ("cost of a query", _ageing(manifest)),
        ("memory", filesize.decimal(manifest.memory)),
        ("segments", f"{segments:,}" + (f", an update of {manifest.base}" if manifest.base else "")),
    ]
    return TextTable((), rows)


def _ageing(manifest: VersionManifest) -> str:
    advice = "; the next job or `likeness index` builds it anew" if manifest.aged else ""
    return f"{manifest.ageing:.1f} times that after a build from all rows{advice}"


def version_facts(version: Version) -> dict[str, Any]:
    """A version as `likeness versions` lists it, ready for JSON. Facts are null where the manifest cannot be read."""
    manifest = version.manifest
    return {
        "version": version.name,
        "live": version.live,
        "rolled_back": version.rolled_back,
        "was_live": version.was_live,
        "created_at": manifest and manifest.created_at.isoformat(timespec="seconds"),
        "ntotal": manifest and manifest.ntotal,
        "recall": manifest and manifest.recall,
        "kinds": manifest and {kind: each.model_dump() for kind, each in manifest.kinds.items()},
        "target_recall": manifest and manifest.settings.target_recall,
        "below_target": manifest and manifest.below_target,
        "latency_ms": manifest and manifest.latency_ms,
        "memory": manifest and manifest.memory,
        "segments": manifest and len(manifest.segments),
        "base": manifest and manifest.base,
        "damage": version.damage,
    }


def versions_table(facts: Sequence[Mapping[str, Any]]) -> TextTable:
    """One line for each version, oldest first, with columns for a terminal of 80 characters; the JSON has the rest."""
    header = ("version", "", "built (UTC)", "images", "recall@10", "p99", "memory")
    return TextTable(header, [_version_row(version) for version in facts])


def _version_row(facts: Mapping[str, Any]) -> tuple[object, ...]:
    if facts["damage"]:
        return (facts["version"], _state(facts), *[None] * 5)
    built = facts["created_at"][:16].replace("T", " ")
    return (
        *(facts["version"], _state(facts), built, facts["ntotal"], f"{facts['recall']['10']:.4f}"),
        *(f"{facts['latency_ms']['p99']:.2f} ms", filesize.decimal(facts["memory"])),
    )


def _state(facts: Mapping[str, Any]) -> str:
    if facts["damage"]:
        return "live, unreadable" if facts["live"] else "unreadable"
    if facts["live"]:
        return "live"
    if facts["rolled_back"]:
        return "rolled back" if facts["was_live"] else "not live"
    return "low recall" if facts["below_target"] else ""


def pruned_table(pruned: Pruned, *, dry_run: bool) -> Group:
    """What was removed, or would be, and what was left behind and why."""
    rows = [
        *((name, "version") for name in pruned.versions),
        *((name, "segment") for name in pruned.segments),
        *((path, _why_it_remained(path)) for path in pruned.remains),
        *((run, "unfinished run that is no longer needed") for run in pruned.runs),
        *((run, f"{counted(count, 'file')} that the run does not name") for run, count in pruned.unnamed_files.items()),
        *((path, f"left: {reason}") for path, reason in pruned.left.items()),
    ]
    verb = "would be freed" if dry_run else "freed"
    total = f"{filesize.decimal(pruned.bytes_freed)} {verb}" if pruned.bytes_freed else "nothing to remove"
    return Group(*([TextTable((), rows)] if rows else []), total)


def _why_it_remained(path: str) -> str:
    return "facts that were merged again" if f"{MERGED}/" in path else "remains of a build that did not finish"


def evaluation_tables(evaluations: Sequence[Evaluation], suspects: Sequence[Mapping[str, Any]]) -> Group:
    """What was compared, the figures by label (two evaluations side by side), confusions, and suspects."""
    one = len(evaluations) == 1
    sides = [(() if one else (str(number),), each) for number, each in enumerate(evaluations, 1)]
    blank = () if one else ("",)
    overview = (*blank, "index", "model", "labelled images", "queries", "index recall@10")
    rows = [
        (*side, each.version, each.model, each.labelled, each.overall.queries, f"{each.recall:.4f}")
        for side, each in sides
    ]
    header = ("label", *blank, "queries", *(f"precision@{depth}" for depth in DEPTHS), "mAP")
    figures = [(side, each) for side, evaluation in sides for each in evaluation.classes]
    figures = sorted(figures, key=lambda figure: (figure[1].label, figure[0]))
    lines = [_figures_row(side, each) for side, each in figures]
    lines += [_figures_row(side, each.overall) for side, each in sides]  # last, where a long list ends
    parts: list[RenderableType] = [
        TextTable(overview, rows),
        "",
        TextTable(header, lines),
        "by an exact scan over random queries; Wilson's 95% intervals in brackets",
    ]
    confusions = [
        (*side, each.label, each.neighbour, f"{each.share:.1%}")
        for side, evaluation in sides
        for each in evaluation.confusions[:_MAX_CONFUSIONS]
    ]
    if confusions:
        parts += ["", TextTable((*blank, "label", "has among its ten nearest", "share"), confusions)]
    if suspects:
        suspect_rows = [
            (each["image_id"], each["label"], f"{each['agreement']:.0%}", each["suggestion"], f"{each['support']:.0%}")
            for each in suspects
        ]
        parts += ["", TextTable(("suspect", "label", "neighbours agree", "most have", "share"), suspect_rows)]
    return Group(*parts)


def _figures_row(side: tuple[str, ...], figures: ClassFigures) -> tuple[object, ...]:
    estimates = (*figures.precision.values(), figures.mean_average_precision)
    return (figures.label, *side, figures.queries, *map(_with_interval, estimates))


def _with_interval(estimate: Estimate) -> str:
    """Short, so that a label's figures fit on one line of a terminal; the JSON has all digits."""
    return f"{estimate.value:.0%} ({100 * estimate.low:.0f}–{100 * estimate.high:.0f})"
