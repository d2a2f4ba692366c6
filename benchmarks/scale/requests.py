"""Requests of each step to an object store, counted by an S3 server on this machine."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3  # type: ignore[import-untyped]
import pyarrow as pa
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from PIL import Image
from werkzeug.serving import make_server

from benchmarks.common.rows import model_of, usual_images, usual_rows
from benchmarks.scale import Costs
from embedder.images import CropSpec
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from jobs.embedding.stages import DecodeSettings, fetch_and_decode
from jobs.planning.changes import compare
from jobs.planning.decide import PlannedJob
from jobs.sources.list_images import list_images
from jobs.sources.stored_listing import Listing

_PICTURES = (500, 2_500)  # the difference is two pages of a listing
_FETCHED = 32
_FILES = (4, 12)
_SEGMENTS = (1, 3)
_ROWS = 60  # per file; few enough for segments that are searched exactly
_MODEL = model_of(8)
_BUCKET = "counted"


class Counting:
    """A WSGI application that counts the requests to another one by method."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self.count: Counter[str] = Counter()

    def __call__(self, environ: dict[str, str], start_response: Callable[..., object]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "GET" and parse_qs(environ.get("QUERY_STRING", "")).keys() & {"list-type", "prefix", "delimiter"}:
            method = "LIST"
        with self._lock:
            self.count[method] += 1
        return self._application(environ, start_response)

    def take(self) -> Counter[str]:
        """The counts since the last call."""
        with self._lock:
            taken, self.count = self.count, Counter()
        return taken


def requests(folder: Path) -> Costs:
    """Requests per picture, row file and segment. Call it in a new process, since it sets environment variables."""
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1")
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
    _empty_cache(folder)
    with _server() as (counting, endpoint):
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=_BUCKET)
        costs = _picture_costs(client, counting)
        few = _cycle(folder, counting, files=_FILES[0], segments=_SEGMENTS[0])
        many = _cycle(folder, counting, files=_FILES[1], segments=_SEGMENTS[0])
        split = _cycle(folder, counting, files=_FILES[1], segments=_SEGMENTS[1])
    files, segments = _FILES[1] - _FILES[0], _SEGMENTS[1] - _SEGMENTS[0]
    costs |= {f"{step}, for each row file": _each(many[step], few[step], files) for step in many}
    costs |= {
        f"{step}, for each segment": _each(split[step], many[step], segments) for step in ("build the index", "open it")
    }
    return {(what, "requests"): each for what, each in costs.items()}


@contextmanager
def _server() -> Iterator[tuple[Counting, str]]:
    counting = Counting(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, counting, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield counting, f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()


def _picture_costs(client: Any, counting: Counting) -> dict[str, dict[str, float | str]]:
    data = BytesIO()
    Image.new("RGB", (64, 64)).save(data, "JPEG")
    listed = []
    for first, end in pairwise((0, *_PICTURES)):
        for number in range(first, end):
            client.put_object(Bucket=_BUCKET, Key=f"photos/{number:06}.jpg", Body=data.getvalue())
        counting.take()
        listing = list_images(f"s3://{_BUCKET}/photos").read()
        listed.append(counting.take())
    settings = DecodeSettings(crop=CropSpec(side=64, shortest_edge=64), draft=True, threads=2)
    fetch_and_decode(listing.slice(0, 1), settings=settings)  # connects
    counting.take()
    table = fetch_and_decode(listing.slice(1, _FETCHED), settings=settings)
    if table["pixels"].null_count:
        raise RuntimeError(f"expected all pictures to be fetched: {table['error_message'].to_pylist()}")
    return {
        "list, for each 1,000 pictures": _each(listed[1], listed[0], (_PICTURES[1] - _PICTURES[0]) / 1_000),
        "fetch, for each picture": _each(counting.take(), Counter(), _FETCHED),
    }


def _cycle(folder: Path, counting: Counting, *, files: int, segments: int) -> dict[str, Counter[str]]:
    """Write, commit, compare and index rows, and open the index; returns the requests by step."""
    collection = Collection.create_or_open(f"s3://{_BUCKET}/collection-{files}-{segments}")
    steps: dict[str, Counter[str]] = {}
    start = collection.start_run("memory:", _MODEL)
    counting.take()
    written = [collection.write_rows(start.run_id, f"{file:06}", _rows(file)) for file in range(files)]
    steps["write"] = counting.take()
    collection.commit_run(start, written)
    steps["commit"] = counting.take()
    runs = collection.runs()
    counting.take()
    LiveRows.of_runs(collection.storage, runs)
    steps["read the ids"] = counting.take()
    compare(
        Listing.of([usual_images(range(files * _ROWS))]),
        collection.snapshot(),
        PlannedJob(source="memory:", model=_MODEL, may_delete=True),
    )
    steps["compare"] = counting.take()
    build_index(collection, IndexSettings(segment_rows=files * _ROWS // segments))
    steps["build the index"] = counting.take()
    _empty_cache(folder)  # a server runs on another machine than the build
    Searcher.open(collection)
    steps["open it"] = counting.take()
    return steps


def _empty_cache(folder: Path) -> None:
    """Start with a new, empty cache."""
    os.environ["LIKENESS_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)


def _rows(file: int) -> pa.Table:
    return usual_rows(range(file * _ROWS, (file + 1) * _ROWS), _MODEL.dim)


def _each(many: Counter[str], few: Counter[str], units: float) -> dict[str, float | str]:
    """What so many units more take, which may be less than nothing."""
    return {name: (many[name] - few[name]) / units for name in sorted(many | few) if many[name] != few[name]}
