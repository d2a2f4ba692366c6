"""Rows of text: aligned columns on a terminal, and elsewhere lines that programs can split."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_MIN_WIDTH: Final = 9
"""Characters per column on average, with the gap; narrower columns are hard to read."""
_PART: Final = 4096
"""Rows of a table that are printed together."""
_ESCAPED: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}


@dataclass(frozen=True)
class TextTable:
    """Rows of values, below a `header` unless that is empty. Nothing in a cell is taken for markup.

    A terminal folds long cells, except in the columns `unfolded`; if it is too narrow for so many columns, each row is
    a block of lines, with the column's name in each. If the output goes elsewhere, each row is one line, with tabs
    between the cells, and nothing is folded or cut. Control characters are escaped as in Python's literals.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    _: KW_ONLY
    right: Container[int] = ()
    unfolded: Container[int] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header, *rows = [[format_cell(cell).translate(_ESCAPED) for cell in row] for row in (self.header, *self.rows)]
        if console.is_terminal:
            narrow = len(header) * _MIN_WIDTH > options.max_width
            yield Group(*_blocks(header, rows)) if narrow else self._table(header, rows)
            return
        for row in [header, *rows] if header else rows:
            yield Segment("\t".join(row) + "\n")

    def _table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(header))
        for number, name in enumerate(header or [""] * max(map(len, rows), default=0)):
            table.add_column(
                Text(name),
                overflow="fold",
                justify="right" if number in self.right else "left",
                no_wrap=number in self.unfolded,
            )
        for row in rows:
            table.add_row(*map(Text, row))
        return table


def print_table(console: Console, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a `TextTable` of rows as they come. A terminal shows one for every few thousand of them, because the widths
    of its columns depend on all of its rows.
    """
    remaining, first = iter(rows), True
    while (part := list(islice(remaining, _PART))) or first:
        console.print(TextTable(header if first or console.is_terminal else (), part))
        first = False


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
    for row in rows:
        block = Table.grid(padding=(0, 2))
        block.add_column(style="dim", no_wrap=True)
        block.add_column(overflow="fold")
        for name, cell in zip(header, row, strict=True):
            block.add_row(Text(name), Text(cell))
        yield block
        yield ""


def format_cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
