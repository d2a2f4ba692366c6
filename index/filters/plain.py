"""Values that a caller in Python may put into a filter, as JSON can hold them, and those of a JSON text."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
from pydantic_core import from_json


def parse_strictly(text: str | bytes) -> Any:
    """The value of a JSON text that a user wrote.

    ValueError if it is not JSON, nested too deeply, has half a character, or a member of an object more than once.
    """
    value = from_json(text if isinstance(text, bytes) else text.encode())
    json.loads(text, object_pairs_hook=_refuse_repeated)  # `from_json` would keep the last of them and drop the rest
    return value


def _refuse_repeated(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        [(name, _)] = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"the member {name!r:.80} is there more than once")


def plain_value(value: object) -> Any:
    """A copy as a server would get it, of objects, lists, texts, numbers, true, false and null; NaN stays.

    Raises TypeError for a value that JSON cannot represent, RecursionError if it is nested too deeply.
    """
    return json.loads(json.dumps(value, default=json_value, check_circular=False))


def json_value(value: object) -> object:
    """A value as JSON can hold it: filters may have a column's values, such as times, and NumPy's and pandas' types.

    Missing ones, NaN, NaT and NA, are NaN, which no column takes. The `default` of `json.dumps`: what it returns may
    have to be converted again. Raises TypeError for other values.
    """
    match value:
        case np.generic() | date() | Decimal() if value != value:
            return math.nan
        case np.datetime64():
            is_long = np.datetime_data(value)[0] in ("Y", "M")  # whose text has no day
            return str(value.astype("datetime64[D]") if is_long else value)
        case np.timedelta64():
            nanoseconds = int(value.astype("timedelta64[ns]").astype(np.int64))
            sign = "-" if nanoseconds < 0 else ""
            return f"{sign}PT{Decimal(abs(nanoseconds)).scaleb(-9):f}S"
        case np.ndarray() if value.dtype.kind in "mM":
            return list(value) if value.ndim else value[()]
        case np.floating():
            return float(value)
        case np.generic() | np.ndarray():
            return value.tolist()
        case date() | time():  # a datetime is a date too
            return value.isoformat()
        case timedelta():
            return np.timedelta64(value)
        case Decimal():
            if value.is_finite() and value == value.to_integral_value():
                return int(value)
            number = float(value)
            return number if Decimal(repr(number)) == value else str(value)
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(value, key=repr)  # equal sets make equal filters, in every process
        case Sequence() | AbstractSet() | ValuesView() if not isinstance(value, bytes | bytearray | memoryview):
            return list(value)
        case _ if hasattr(value, "to_pylist"):  # Arrow's columns, whose to_numpy refuses texts and nulls
            return value.to_pylist()
        case _ if hasattr(value, "to_numpy"):  # pandas' and Polars' columns
            return value.to_numpy()
        case _ if (value != value) is value:  # pandas' NA
            return math.nan
        case _:
            raise TypeError(
                f"expected a value that JSON can hold, a time, a duration, or a list or set of them, got {value!r}"
            )
