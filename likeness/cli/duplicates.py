"""The command `duplicates`. `app` registers it."""

import csv
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from index.analysis.duplicate_kinds import KINDS, Kind
from index.errors import CollectionError
from jobs.errors import UsageError
from jobs.values import MAX_DIFFERENCE, MIN_SIMILARITY, counted, some
from likeness.cli.options import CollectionArgument, console, error_console, open_collection, print_json_list

if TYPE_CHECKING:
    from index.analysis.duplicate_plan import DuplicatePlan
    from jobs.duplicates.move import MoveReport


def duplicates(
    collection: CollectionArgument,
    kinds: Annotated[
        str | None,
        typer.Option(help=f"Some of {', '.join(KINDS)}. By default, all."),
    ] = None,
    min_score: Annotated[float, typer.Option(min=-1, max=1, help="Minimum cosine of similar images.")] = MIN_SIMILARITY,
    max_difference: Annotated[
        float, typer.Option(min=0, max=1, help="Maximum pixel difference of re_encoded and cropped copies.")
    ] = MAX_DIFFERENCE,
    move_to: Annotated[
        Path | None, typer.Option(help="Move the files of all duplicates except similar ones to this folder.")
    ] = None,
    move_from: Annotated[
        list[Path] | None, typer.Option(help="A folder whose files may be moved; may be repeated. --move-to needs one.")
    ] = None,
    undo: Annotated[Path | None, typer.Option(help="Move back the files named in this log of --move-to.")] = None,
    output: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", help="A table for people; CSV or JSON for programs.")
    ] = "table",
) -> None:
    """Find duplicates and plan which to keep: identical bytes or pixels, re-encoded, resized or cropped copies.

    It also lists similar images, and deletes nothing. A server shows the plan at /duplicates.

    Examples: `likeness duplicates my-collection`, `likeness duplicates my-collection --kinds similar --min-score 0.99`,
    `likeness duplicates my-collection --move-from ~/Pictures --move-to set-aside`,
    `likeness duplicates my-collection --undo set-aside/moved.jsonl`
    """
    from index.analysis.duplicate_plan import write_plan
    from index.storage.scratch import Scratch
    from jobs.duplicates.move import LOG, movable_folders, move_duplicates, moved_files, undo_moves

    if undo is not None:
        if move_to is not None:
            raise UsageError("expected one of --move-to and --undo")
        _report_moves(undo_moves(undo), "moved back")
        return
    movable, moved = [], frozenset[Path]()
    if move_to is not None:
        sources = {run.source for run in open_collection(collection).runs()}
        movable, moved = movable_folders(move_from or [], sources), moved_files(move_to)
    with Scratch("duplicates") as scratch:
        plan = _plan(collection, _parse_kinds(kinds), min_score, max_difference, moved, scratch=scratch.path)
        try:
            write_plan(open_collection(collection), plan)
        except (OSError, CollectionError) as error:  # the collection may be read-only
            line = f"[yellow]plan not stored for the server:[/yellow] {escape(str(error))}"
            error_console.print(line, soft_wrap=True)
        _show_plan(output, plan)
        if move_to is not None:
            if moved:
                error_console.print(f"{counted(len(moved), 'file')} had been moved before", highlight=False)
            undo_hint = f"; `--undo {move_to / LOG}` moves them back"
            advice = f"{undo_hint}, and `likeness reembed` removes them from the collection"
            _report_moves(move_duplicates(plan, move_to, movable), "moved", advice)


def _show_plan(output: str, plan: "DuplicatePlan") -> None:
    from likeness.cli.tables.duplicates import HEADER, csv_rows, plan_cells, plan_counts
    from likeness.cli.tables.text_table import print_table

    if output == "csv":
        csv.writer(console.file).writerows(csv_rows(plan))
    elif output == "json":
        summary = json.dumps(plan.model_dump(mode="json", exclude={"found"}), indent=2, ensure_ascii=False)
        print(summary.removesuffix("\n}"), '  "found": ', sep=",\n", end="", file=console.file)
        print_json_list((group.model_dump(mode="json") for group in plan.found), indent="  ")
        print("}", file=console.file)
    else:
        if plan.groups:
            print_table(console, HEADER, plan_cells(plan))
        console.print(plan_counts(plan))


def _parse_kinds(text: str | None) -> Sequence[Kind]:
    names = [part.strip() for part in text.split(",")] if text is not None else KINDS
    if unknown := [name for name in names if name not in KINDS]:
        raise UsageError(f"--kinds names {', '.join(unknown) or 'none'}: expected some of {', '.join(KINDS)}")
    return [kind for kind in KINDS if kind in names]


def _plan(
    collection: str,
    kinds: Sequence[Kind],
    min_score: float,
    max_difference: float,
    moved: frozenset[Path],
    *,
    scratch: Path,
) -> "DuplicatePlan":
    from jobs.duplicates.find import Finder
    from jobs.duplicates.picture_loader import PictureLoader

    with error_console.status("opening the index") as status, closing(PictureLoader()) as reader:
        return Finder(
            collection=open_collection(collection),
            loader=reader,
            kinds=kinds,
            min_score=min_score,
            max_difference=max_difference,
            moved=moved,
            progress=lambda what, done, total: status.update(f"{done:,} of {total:,} {what}"),
        ).plan(scratch)


def _report_moves(report: "MoveReport", verb: str, advice: str = "") -> None:
    """Print the moves to stderr, because stdout may be CSV. Exits with 1 if a file could not be moved."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in report.refused.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        line = f"[yellow]not {verb}:[/yellow] {escape(some(names))}: {escape(reason)}"
        error_console.print(line, soft_wrap=True, highlight=False)
    total = f"{counted(len(report.files), 'file')} {verb}"
    error_console.print(escape(total + (advice if report.files else "")), soft_wrap=True, highlight=False)
    if report.refused:
        raise typer.Exit(1)
