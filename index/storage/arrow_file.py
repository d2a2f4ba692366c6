"""Reads Arrow files, whose author may be anyone. Arrow trusts their offsets and lengths, and would crash on wrong ones,
so every value is validated before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

_MAGIC: Final = b"ARROW1"
_STREAM_START: Final = 8
_HEADER, _DICTIONARY_BATCH, _COMPRESSION = 2, 1, 3
"""Numbers of fields in the tables Message, DictionaryBatch and RecordBatch."""


def read_batches(
    source: pa.NativeFile, columns: Sequence[str] | None = None, *, expected: pa.Schema | None = None
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Schema and batches of a file, all columns or some, without a copy if it is mapped. ValueError says what is wrong
    with it, such as another schema than `expected`.
    """
    with _as_value_error():
        # Read as the stream that it contains, so that the messages are those that were looked at.
        content = source.read_buffer()
        if content.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
            raise ValueError("it is not an Arrow file")
        stream = content.slice(_STREAM_START)
        if any(map(_is_compressed, pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)))):
            raise ValueError("it is compressed: its values may be far larger than the file")
        reader = pa.ipc.open_stream(pa.BufferReader(stream))
        schema, batches = _checked(reader.schema), []
        if expected is not None and not schema.equals(expected):
            raise ValueError(f"it has the columns {dict(zip(schema.names, schema.types, strict=True))}")
        for batch in reader:
            batches.append(batch if columns is None else batch.select(list(columns)))
            batches[-1].validate(full=True)
            if expected is None:
                _show(batches[-1])
        return schema, batches


def _is_compressed(message: pa.Message) -> bool:
    """Whether the values of a message are compressed, which pyarrow does not tell: see Arrow's Message.fbs."""
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """Where a field of a flatbuffer's table is; 0 if it is missing."""
        slots = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        size = int.from_bytes(data[slots : slots + 2], "little")
        at = slots + 4 + 2 * number
        start = int.from_bytes(data[at : at + 2], "little") if at + 2 <= slots + size else 0
        return table + start if start else 0

    def linked(at: int) -> int:
        return at + int.from_bytes(data[at : at + 4], "little")

    batch = linked(field(linked(0), _HEADER))
    if message.type == "dictionary":
        batch = linked(field(batch, _DICTIONARY_BATCH))
    return message.type != "schema" and field(batch, _COMPRESSION) > 0


def read_schema(source: pa.NativeFile) -> pa.Schema:
    """The schema of a file. ValueError says what is wrong with it."""
    with _as_value_error():
        return _checked(pa.ipc.open_file(source).schema)


def _checked(schema: pa.Schema) -> pa.Schema:
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("it has several columns of one name")
    for field in schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            pa.lib.string_to_tzinfo(field.type.tz)
    return schema


def _show(batch: pa.RecordBatch) -> None:
    """Convert a row as answers do: a type may be one that Python cannot represent."""
    names = [field.name for field in batch.schema if not _is_plain_time(field.type)]
    with suppress(OverflowError):  # a time that is too far away, which is shown as None
        batch.select(names).slice(0, 1).to_pylist()


def _is_plain_time(kind: Any) -> bool:
    """Whether Python has all values of a type but times that are too far away. pyarrow imports pandas to convert one
    with a time zone, which takes longer than to open an index.
    """
    return pa.types.is_timestamp(kind) and kind.unit != "ns"


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Raises ValueError, on one line, for whatever Arrow raises on a file that it cannot read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split())[:300] or type(error).__name__) from error


def require_columns(schema: pa.Schema, expected: dict[str, Any]) -> None:
    """ValueError unless the columns of a file have these names and types, in any order."""
    found = {field.name: field.type for field in schema}
    if found != expected:
        raise ValueError(f"it has the columns {found}: expected {expected}"[:500])
