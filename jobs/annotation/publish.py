"""Names of annotations, and index versions with their columns."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from index.collection import Collection
from index.collection.annotations import (
    Annotation,
    annotation_log,
    annotation_logs,
    belongs_to,
    drop_annotation,
    kind_of,
    list_annotations,
)
from index.collection.collection import Snapshot
from index.errors import RolledBackError
from index.versions.repeats import require_newer_than_choice
from index.versions.servable import live_manifest
from jobs.errors import UsageError
from jobs.sources.listing import RESERVED_NAMES
from jobs.values import counted

SOURCE = "collection"
"""What an annotation's runs record as their source: their own collection, which may be moved."""


def require_name_available(collection: Collection, name: str, metadata: Sequence[str]) -> None:
    """Raises UsageError if a column of the source, or another annotation, has a name that this one would reserve."""
    names = [annotation.name for annotation in list_annotations(collection)]
    columns = dict.fromkeys([*metadata, *sorted(RESERVED_NAMES)])
    conflicts = [column for column in columns if belongs_to(column, name)]
    conflicts += [other for other in names if other != name and (belongs_to(other, name) or belongs_to(name, other))]
    if conflicts:
        hint = f", and drop the annotation {name} ({_to_drop(collection, name)}), which hides the source's column"
        raise UsageError(
            f"--name {name} would reserve {name} and {name}_…, which conflict with {', '.join(conflicts)}: choose "
            f"another name{hint if name in names else ''}"
        )


def hidden_columns(collection: Collection, columns: Sequence[str]) -> Iterator[str]:
    """A warning for each annotation that hides some of these columns of the source, which came after it."""
    for name, log in sorted(annotation_logs(collection).items()):
        if any(belongs_to(column, name) for column in columns) and (runs := log.runs()):
            own = Annotation(name, log, runs).rows.metadata
            if hidden := [column for column in columns if column in own]:
                which, them = ("column", "it") if len(hidden) == 1 else ("columns", "them")
                yield (
                    f"the annotation {name} hides the source's {which} {', '.join(hidden)} from searches: rename "
                    f"{them} in the source, or drop the annotation ({_to_drop(collection, name)})"
                )


def _to_drop(collection: Collection, name: str) -> str:
    return f"`likeness columns {collection.location} --drop {name}`"


_VALUES = """
SELECT count(DISTINCT image_id) AS images, max(run) AS run FROM written WHERE error_reason IS NULL AND run IN ({})
"""


def require_same_kind(collection: Collection, name: str, predictor: str, log: Snapshot) -> None:
    """Raises UsageError if the annotation `name`, even an unfinished one, has values of another kind than those of this
    predictor, which would replace them: they may have taken hours.
    """
    if all(kind_of(run.model.id) == kind_of(predictor) for run in (*log.committed, *log.unfinished)):
        return
    rows = log.everything()
    others = [number for number, run in enumerate(rows.runs) if kind_of(run.model.id) != kind_of(predictor)]
    [found] = rows.table(_VALUES.format(", ".join(map(str, others)))).to_pylist()
    if found["images"]:
        raise UsageError(
            f"--name {name} has {rows.runs[found['run']].model.id}, {counted(found['images'], 'image')}: choose "
            f"another name, or drop these columns first ({_to_drop(collection, name)})"
        )


def publish(collection: Collection, console: Console, said: Sequence[str] = ()) -> None:
    """Make an index version with the images of the live one and the current annotations, unless nothing has changed
    since somebody chose the live version. That is printed, if it was not `said` before.
    """
    live = live_manifest(collection)
    if live is None:
        console.print(f"there is no index yet: `likeness index {collection.location}` builds one with these columns")
        return
    from index.builder.build_index import build_index  # imported late: faiss takes a second

    try:
        runs = collection.runs()
        require_newer_than_choice(collection, live, runs)
        build_index(collection, runs=[run for run in runs if run.run_id in live.runs])
    except RolledBackError as error:
        if str(error) not in said:
            console.print(str(error))


def drop(collection: Collection, name: str, console: Console) -> None:
    """Remove an annotation, even an unfinished one, and its columns from the index. A drop that was stopped continues.
    Raises UsageError if neither has the name.
    """
    live = live_manifest(collection)
    names = annotation_logs(collection).keys() | (live.annotations if live else {}).keys()
    if name not in names:
        others = f"expected one of {', '.join(sorted(names))}" if names else "the collection has none"
        raise UsageError(f"there is no annotation {name}: {others}")
    log = annotation_log(collection, name)
    drop_annotation(Annotation(name, log, log.runs()))
    publish(collection, console)
