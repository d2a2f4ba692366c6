"""Lists rejects, and counts their reasons."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from index.collection.catalog.catalog import Catalog
from index.collection.catalog.workspace import Workspace
from index.collection.rows import REJECT_COLUMNS, text_array

_SHOWN: Final = ", ".join(("image_id", "uri", *REJECT_COLUMNS))


def list_rejects(catalog: Catalog, reasons: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The images that are rejected or left out for one of these reasons, by id."""
    sql = f"SELECT {_SHOWN} FROM live_rows SEMI JOIN reasons USING (error_reason) ORDER BY image_id"
    return catalog.rows(sql, reasons=pa.table({"error_reason": text_array(reasons)}))


def count_reasons(workspace: Workspace, rows: str = "live_rows") -> Counter[str]:
    """How many images are rejected or left out for each reason; equally frequent ones in alphabetical order."""
    counts = f"SELECT error_reason, count(*) AS images FROM {rows} WHERE error_reason IS NOT NULL GROUP BY ALL"
    return Counter({row["error_reason"]: row["images"] for row in workspace.rows(f"{counts} ORDER BY error_reason")})


def format_reasons(counts: Counter[str], limit: int | None = None) -> str:
    """ "truncated: 3, timeout: 1"; empty when there are none."""
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common(limit))
