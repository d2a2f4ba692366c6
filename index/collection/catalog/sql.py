"""Names, texts and types in DuckDB's SQL."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from index.collection.rows import JSON, is_list


def quoted(text: str) -> str:
    """A text in SQL, without the braces that mark what is filled into statements."""
    return "'" + text.replace("'", "''").replace("{", "'||chr(123)||'") + "'"


def parquet(paths: Iterable[str | Path], *columns: str) -> str:
    """The rows of Parquet files, with these of DuckDB's own columns: `file_row_number`, `filename`."""
    files = ", ".join(quoted(str(path)) for path in paths)
    # Otherwise a folder such as `size=1` is a column.
    options = ["hive_partitioning = false", *(f"{name} = true" for name in columns)]
    return f"read_parquet([{files}], {', '.join(options)})"


def shape(schema: pa.Schema) -> pa.Schema:
    """The columns as DuckDB reads them from Parquet, where some types are stored as others."""
    return pa.schema([field.with_type(_stored(field.type)) for field in schema])


def _stored(kind: Any) -> pa.DataType:
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.string()
    if is_list(kind):
        return pa.large_list(_stored(kind.value_type))
    return kind  # type: ignore[no-any-return]


def cast(column: str, have: Any, kind: Any, wanted: str) -> str:
    """A column in SQL as another type, `kind` in Arrow and `wanted` in SQL; it has the Arrow type `have`."""
    if pa.types.is_null(have):
        return f"CAST(NULL AS {wanted})"
    if kind == JSON and have != JSON:
        return f"to_json({column})"
    if is_list(kind) and not is_list(have):
        return f"CASE WHEN {column} IS NOT NULL THEN CAST([{column}] AS {wanted}) END"
    return f"CAST({column} AS {wanted})"


def without_nan(number: str) -> str:
    """A number in SQL, null if it is NaN."""
    return f"CASE WHEN NOT isnan({number}) THEN {number} END"
