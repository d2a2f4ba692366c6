"""Values of metadata columns as JSON can hold them."""

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any


def plain(value: Any) -> Any:
    """`value` of a metadata column as JSON can hold it: no NaN, bytes as base64, times in ISO 8601."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return str(value)
