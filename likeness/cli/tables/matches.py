"""Tables of matches for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from api.search.query import SearchResult, metadata_column
from index.matches import MATCH_COLUMNS, Match
from likeness.cli.tables.text_table import TextTable


@dataclass(frozen=True)
class ResultTables:
    """The matches; on a terminal also the counted columns, how many there are in all, and the next cursor."""

    result: SearchResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        result = self.result
        yield match_table(result.matches, first=result.first)
        if not console.is_terminal:
            return
        for name, facet in (result.facets or {}).items():
            rows = [(each["value"], each["count"]) for each in facet["values"]]
            more = [(f"and {facet['others']:,} more", "")] if facet["others"] else []
            yield TextTable((name, "images"), [*rows, *more], right={1})
        groups = "" if result.groups is None else f"{result.groups:,} groups of "
        yield Text(f"{len(result):,} of {groups}{'' if result.exact else 'about '}{result.total:,} images")
        if result.cursor is not None:
            yield Text(f"next page: --cursor {result.cursor}", no_wrap=True, overflow="ignore")


def match_table(matches: Sequence[Match], first: int = 1) -> TextTable:
    """Rank, counted from `first`, fields and metadata of each match. Left out are fields that no match has, and `uri`
    where it is the id.
    """
    rows = [{**vars(match), "uri": None if match.uri == match.image_id else match.uri} for match in matches]
    used = {name for row in rows for name, value in row.items() if value not in (None, (), "")}
    shown = [name for name in MATCH_COLUMNS[1:] if name in used | {"score", "image_id"}]
    names = list(dict.fromkeys(name for match in matches for name in match.metadata))
    return TextTable(
        ("rank", *shown, *map(metadata_column, names)),
        [
            (str(rank), *(_match_cell(row[name]) for name in shown), *(row["metadata"].get(name) for name in names))
            for rank, row in enumerate(rows, start=first)
        ],
    )


def _match_cell(value: object) -> object:
    match value:
        case float():
            return f"{value:.3f}"
        case (float(), *_):  # a box, as `--crop` takes it
            return ",".join(f"{fraction:g}" for fraction in value)
        case Mapping():  # the words of each column
            return "; ".join(f"{name}: {', '.join(words)}" for name, words in value.items())
    return value
