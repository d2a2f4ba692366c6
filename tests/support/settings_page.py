"""Renders `docs/settings.md` from the fields of `ServeSettings`, for `make docs`."""

import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from api.settings import Replicas, ServeSettings

# Each heading precedes the first field of its section.
_SECTIONS = {
    "collection": "Collection and model",
    "host": "Address and access",
    "allowed_hosts": "Queries",
    "log_format": "Log",
    "replicas": "Ray Serve",
    "max_searches": "Load",
}

_INTRODUCTION = """\
# Settings of a server

`likeness serve` reads these environment variables. Its options (`likeness serve --help`) override them. In the `args`
of a Serve config file the names are in lower case, without `LIKENESS_`.
[Running and monitoring a server](../deploy/serving.md) helps you choose values.

This page is rendered from [`api/settings.py`](../api/settings.py) by `make docs`.
"""

_OTHERS = """\
## Other variables

| variable | meaning |
|---|---|
| `LIKENESS_CACHE_DIR`, `LIKENESS_CACHE_BYTES` | The [cache](buckets.md#the-cache-of-index-files), also for models. |
| `RAY_ADDRESS` | The Ray cluster to serve on, like `--address`. By default one is started here. |
| `FORWARDED_ALLOW_IPS` | With `--local`: proxies whose `X-Forwarded-For` is trusted. By default this machine's. |
| `LIKENESS_COLLECTION`, `LIKENESS_EMBEDDER` | What the [notebooks](python.md#notebooks) open. |
| `LIKENESS_URL`, `LIKENESS_API_KEY` | The server that the notebook about HTTP searches, and a key for it. |

Credentials for buckets are in [buckets.md](buckets.md), the fields of a job's file in [jobs.md](jobs.md#a-jobs-file).
"""


def settings_page() -> str:
    """The page, with a row for every field."""
    parts = [_INTRODUCTION]
    for name, field in ServeSettings.model_fields.items():
        if name in _SECTIONS:
            parts.append(f"\n## {_SECTIONS[name]}\n\n| variable | default | meaning |\n|---|---|---|\n")
        meaning = " ".join((field.description or "").split())
        parts.append(f"| `LIKENESS_{name.upper()}` | {_default(name, field)} | {meaning} |\n")
    return "".join([*parts, "\n", _OTHERS])


def _default(name: str, field: FieldInfo) -> str:
    """The default as a user would write it, or nothing if there is none or the description explains it."""
    value: Any = field.default
    if field.is_required() or value is None or value in (frozenset(), ()):
        return ""
    if isinstance(value, Replicas):
        value = value.minimum if value.minimum == value.maximum else f"{value.minimum}:{value.maximum}"
    text = str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
    return f"`{text}` ({value // 2**20} MiB)" if name.endswith("_bytes") else f"`{text}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(settings_page())
