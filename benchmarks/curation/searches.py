"""Saved searches: `python -m benchmarks.curation.searches [--quick]`.

1,000 searches, half of them with a filter, over clustered vectors of 512 dimensions: a first night, one with 10,000 new
images to the live version, and the calls to a webhook on this machine for what they find.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.annotate import Hashed
from benchmarks.common.clustered import Clustered, add_rows, index_rows
from benchmarks.common.process import in_new_process, peak_rss, seconds_of
from benchmarks.common.report import Report, run
from index.builder.build_index import build_index
from index.collection import Collection, writing
from jobs.annotation.annotate import Annotate
from jobs.embedding.report import Report as JobReport
from jobs.fields import Target
from jobs.schedule.saved_searches import run_searches
from jobs.search_spec import SearchSpec

COUNT, NEW, CUT, BUCKETS = 1_000, 10_000, 0.6, 500


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def searches(url: str | None) -> list[SearchSpec]:
    """Each is for images like one of the first; those with odd numbers take one half of all buckets."""
    target = None if url is None else Target(url=url)
    return [
        SearchSpec(
            name=f"search {number:03}",
            image_id=str(number),
            min_score=CUT,
            filter={"bucket": {"$lt": BUCKETS}} if number % 2 else None,
            notify=target,
        )
        for number in range(COUNT)
    ]


def night(location: str, url: str | None = None) -> dict[str, float]:
    """A night of the searches: its seconds, the matches among what it tests, and those that it delivers."""
    report, specs = JobReport(collection=location), searches(url)

    def search() -> None:
        with writing(Collection.open(location), "benchmark") as collection:
            job = Annotate(collection=collection, console=Console(quiet=True))
            run_searches(job, specs, lambda _: 1 / 0, report)  # type: ignore[arg-type, return-value]  # needs no model

    seconds, counts = seconds_of(search), report.searches.values()
    matched, delivered = (sum(getattr(each, name) for each in counts) for name in ("matched", "delivered"))
    return {"seconds": seconds, "matched": matched, "delivered": delivered, "peak": peak_rss()}


def main(report: Report, folder: Path, options: Any) -> None:
    rows, location = 20_000 if options.quick else 100_000, str(folder / "collection")
    in_new_process(index_rows, location, range(rows), Hashed())
    first = in_new_process(night, location)
    add_rows(Collection.open(location), Clustered(), range(rows, rows + NEW))
    in_new_process(build_index, Collection.open(location))
    second = in_new_process(night, location)
    add_rows(Collection.open(location), Clustered(), range(rows + NEW, rows + 2 * NEW))
    in_new_process(build_index, Collection.open(location))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        third = in_new_process(night, location, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    report.values(
        f"{COUNT:,} searches",
        {
            f"seconds of the first night, {rows:,} images": first["seconds"],
            "matches among these": second["matched"],
            f"seconds with calls for {third['delivered']:,} matches": third["seconds"],
            "peak memory, GB": max(each["peak"] for each in (first, second, third)) / 1e9,
        },
    )
    report.at_most(f"seconds of a night, {NEW:,} new images", second["seconds"], 3)
    report.at_most("matches that are not delivered", third["matched"] - third["delivered"], 0)


if __name__ == "__main__":
    run("searches", __doc__, main, "20,000 images")
