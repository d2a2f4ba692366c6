"""Tables and views of one's own in the DuckDB of this process."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from index.collection.catalog.database import database, run_statement
from index.errors import CollectionError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")

_GROUPED: Final = 4_000_000  # rows that are grouped by a text at a time
_ROWS: Final = 4096  # Python objects in memory


class Workspace:
    """A schema of DuckDB, without anything at first. Queries may name what is in others too, as `{name}.{table}`.

    `location` is where the rows come from, for messages. The tables are dropped with the last reference.
    """

    _rows = 0
    """How many rows it has from the start."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.name = f"workspace_{next(_numbers)}"
        with database().cursor() as cursor:
            run_statement(cursor, lambda: cursor.execute(f"CREATE SCHEMA {self.name}"))
        weakref.finalize(self, _ended.append, self.name).atexit = False

    @contextmanager
    def query(self, sql: str, batch_rows: int = 2**17, /, **tables: pa.Table) -> Iterator[pa.RecordBatchReader]:
        """The answer to a query, which may name these Arrow `tables`, in batches of at most `batch_rows`."""
        with self._asked(lambda cursor: cursor.sql(sql).to_arrow_reader(batch_rows), tables) as batches:
            yield batches

    def rows(self, sql: str, /, **tables: pa.Table) -> Iterator[dict[str, Any]]:
        """The answer to a query, row by row."""
        with self.query(sql, _ROWS, **tables) as batches:
            for batch in batches:
                yield from batch.to_pylist()

    def table(self, sql: str, **tables: pa.Table) -> pa.Table:
        """The answer to a query."""
        with self.query(sql, **tables) as batches:
            return batches.read_all()

    def create(self, sql: str, **tables: pa.Table) -> int:
        """Create tables or views; statements may name these Arrow `tables`. Returns how many rows the last one wrote,
        if it writes any.
        """
        with self._asked(lambda cursor: cursor.execute(sql).fetchone(), tables) as count:
            return count[0] if count else 0

    def store(self, sql: str, **tables: pa.Table) -> StoredAnswer:
        """The answer to a query, kept here: it may be larger than the memory."""
        name = f"answer_{next(_numbers)}"
        return StoredAnswer(self, f"{self.name}.{name}", self.create(f"CREATE TABLE {name} AS {sql}", **tables))

    def group(
        self, name: str, columns: str, source: str, key: str, *, having: str = "true", rows: int = 0, **tables: pa.Table
    ) -> int:
        """Create a table of the groups by a text of the rows that a query has, which are at most `rows`, if more than a
        catalog has. Returns the number of groups.

        In passes: DuckDB runs out of memory when it groups tens of millions of texts at once.
        """
        groups = 0
        for number, part in enumerate(self._passes(source, key, rows)):
            create = f"INSERT INTO {name}" if number else f"CREATE OR REPLACE TABLE {name} AS"
            groups += self.create(f"{create} SELECT {columns} FROM {part} GROUP BY {key} HAVING {having}", **tables)
        return groups

    def _passes(self, source: str, key: str, rows: int = 0) -> Iterator[str]:
        """The rows of a query in parts, each with all rows of some keys; see `group`."""
        passes = 1 + max(rows, self._rows) // _GROUPED
        return (f"(FROM ({source}) WHERE hash({key}) % {passes} = {number})" for number in range(passes))

    @contextmanager
    def _asked(self, ask: Callable[[DuckDBPyConnection], T], tables: Mapping[str, pa.Table]) -> Iterator[T]:
        """What `ask` returns of a connection of its own, so that answers can be read side by side. CollectionError for
        errors of DuckDB.
        """
        import duckdb

        def run() -> T:
            _drop_ended(cursor)
            cursor.execute(f"SET search_path = '{self.name}'")
            for name, table in tables.items():
                cursor.register(name, table)
            return ask(cursor)

        try:
            with database().cursor() as cursor:
                yield run_statement(cursor, run)
        except duckdb.Error as error:
            what = str(error).partition("\n")[0]  # then comes the statement
            todo = "; give each column one type in the source" if isinstance(error, duckdb.ConversionException) else ""
            raise CollectionError(f"the rows of {self.location} cannot be read ({what}){todo}") from error


@dataclass(frozen=True)
class StoredAnswer:
    """`num_rows` rows of a workspace, as the table `sql` in the queries of any other."""

    workspace: Workspace
    sql: str
    num_rows: int


_numbers = itertools.count()

_ended: Final = deque[str]()
"""Names of workspaces that were collected. The next statement of any other drops them: a finalizer may run anywhere,
even while its thread holds a lock, and what a signal raises in it is lost.
"""


def _drop_ended(cursor: DuckDBPyConnection) -> None:
    while _ended:
        with suppress(Exception):  # another thread may have been faster
            cursor.execute(f"DROP SCHEMA {_ended.popleft()} CASCADE")
