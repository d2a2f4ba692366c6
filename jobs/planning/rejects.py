"""Lists rejects, and counts their reasons."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from index.collection.catalog.catalog import Catalog, StoredAnswer
from index.collection.rows import REJECT_COLUMNS, text_array

_SHOWN: Final = ", ".join(("image_id", "uri", *REJECT_COLUMNS))
_COUNTS: Final = """
SELECT error_reason, count(*) AS images FROM live_rows
WHERE error_reason IS NOT NULL GROUP BY error_reason ORDER BY min(image_id)
"""


def list_rejects(catalog: Catalog, reasons: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """The images that are rejected or left out for one of these reasons (None: any), by id."""
    reasons = count_rejects(catalog) if reasons is None else reasons
    sql = f"SELECT {_SHOWN} FROM live_rows SEMI JOIN reasons USING (error_reason) ORDER BY image_id"
    return catalog.rows(sql, reasons=pa.table({"error_reason": text_array(reasons)}))


def count_rejects(catalog: Catalog) -> Counter[str]:
    """How many images are rejected or left out for each reason."""
    return Counter({row["error_reason"]: row["images"] for row in catalog.rows(_COUNTS)})


def count_reasons(rejects: StoredAnswer | None) -> Counter[str]:
    """How often each reason occurs; equally frequent ones in alphabetical order."""
    if rejects is None:
        return Counter()
    sql = f"SELECT error_reason, count(*) AS images FROM {rejects.sql} GROUP BY error_reason ORDER BY error_reason"
    return Counter({row["error_reason"]: row["images"] for row in rejects.catalog.rows(sql)})


def format_reasons(counts: Counter[str], limit: int | None = None) -> str:
    """ "truncated: 3, timeout: 1"; empty when there are none."""
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common(limit))
