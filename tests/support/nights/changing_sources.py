"""Two sources whose images change at random: listings of made-up files."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from embedder.errors import FetchError
from embedder.fetch.validators import Download
from index.collection.rows import EMBEDDING, STATE_COLUMNS, TEXT
from jobs.sources.listing import LISTING, REFUSAL, REFUSED_STAGE, UNREADABLE, listing_table, refuse
from tests.jobs.planning.decisions import Image
from tests.support.nights.fake_pictures import CONTENTS, HASHES, data_of

SOURCES: Final = ("/a", "/b")
COLUMNS: Final = (*STATE_COLUMNS, EMBEDDING, "error_message", "label", "exif_camera")
"""Of images and rows."""
NAMES: Final = "abcdefghijkl"
_PLACES = ("/files", "/files", "s3://bucket", "/bare", "http://host")
"""Listings know the size and time of files, the ETag of objects too, and nothing of the others."""


@dataclass
class File:
    """`failure` says why it cannot be fetched."""

    content: int
    modified: datetime
    failure: str | None = None


@dataclass(frozen=True)
class _Entry:
    uri: str
    label: str | None


class ChangingSources:
    """The `files` by address; `log` says what happened."""

    def __init__(self, drawn: random.Random) -> None:
        self.log, self.files = list[str](), dict[str, File]()
        self._random, self._now = drawn, datetime(2026, 1, 1, tzinfo=UTC)
        self._entries: dict[str, dict[str, _Entry]] = {source: {} for source in SOURCES}
        self._left: dict[str, dict[str, _Entry]] = {source: {} for source in SOURCES}
        self._refused: dict[str, dict[str, tuple[str | None, str]]] = {source: {} for source in SOURCES}
        self._found = dict[str, str]()
        for source in SOURCES:
            for _ in range(4):
                self._add(source)

    def change(self) -> None:
        """Several things happen to the images of the sources."""
        often = [self._touch, self._move, self._copy, self._relabel, self._delete, self._return, self._fail]
        seldom = [self._add, self._change, self._change_silently, self._rename, self._share, self._refuse]
        for event in self._random.choices([*often, *often, *seldom], k=self._random.randrange(6)):
            source = self._random.choice(SOURCES)
            before = dict(self._entries[source])
            event(source)
            after = self._entries[source]
            changed = sorted({*before.items(), *after.items()} - ({*before.items()} & {*after.items()}), key=str)
            self.log.append(f"{event.__name__} {source} {[(name, *vars(entry).values()) for name, entry in changed]}")

    def _tick(self) -> datetime:
        self._now += timedelta(minutes=1)
        return self._now

    def _pick(self, source: str) -> tuple[str, _Entry, File] | None:
        """A listed image."""
        entries = sorted(self._entries[source])
        if not entries:
            return None
        name = self._random.choice(entries)
        entry = self._entries[source][name]
        return name, entry, self.files[entry.uri]

    def _free_id(self, source: str) -> str:
        return self._random.choice([name for name in NAMES if name not in self._entries[source]] or ["z"])

    def _place(self, near: str | None = None, content: int | None = None) -> str:
        """An address, of the same kind as `near`. If it had no file, it gets this content."""
        folder = near.rpartition("/")[0] if near else self._random.choice(_PLACES)
        content = self._random.choice(CONTENTS) if content is None else content
        uri = f"{folder}/{self._random.choice(NAMES)}"
        self.files.setdefault(uri, File(content, self._tick()))
        return uri

    def _label(self) -> str | None:
        return self._random.choice(["cat", "cat", "dog", None])

    def _add(self, source: str) -> None:
        self._entries[source][self._free_id(source)] = _Entry(self._place(), self._label())

    def _change(self, source: str) -> None:
        if picked := self._pick(source):
            picked[2].content, picked[2].modified = self._random.choice(CONTENTS), self._tick()

    def _change_silently(self, source: str) -> None:
        """Neither size nor time tell."""
        if picked := self._pick(source):
            picked[2].content = picked[2].content // 4 * 4 + self._random.randrange(4)

    def _touch(self, source: str) -> None:
        if picked := self._pick(source):
            picked[2].modified = self._tick()

    def _move(self, source: str) -> None:
        if picked := self._pick(source):
            name, entry, file = picked
            uri = self._place(entry.uri, file.content)
            del self._entries[source][name]
            self._entries[source][self._free_id(source)] = _Entry(uri, entry.label)

    def _rename(self, source: str) -> None:
        if picked := self._pick(source):
            self._entries[source][self._free_id(source)] = self._entries[source].pop(picked[0])

    def _copy(self, source: str) -> None:
        if picked := self._pick(source):
            _, entry, file = picked
            self._entries[source][self._free_id(source)] = _Entry(self._place(entry.uri, file.content), self._label())

    def _relabel(self, source: str) -> None:
        if picked := self._pick(source):
            self._entries[source][picked[0]] = replace(picked[1], label=self._label())

    def _delete(self, source: str) -> None:
        if picked := self._pick(source):
            self._left[source][picked[0]] = self._entries[source].pop(picked[0])

    def _return(self, source: str) -> None:
        if left := sorted(self._left[source]):
            name = self._random.choice(left)
            self._entries[source][name] = self._left[source].pop(name)

    def _fail(self, source: str) -> None:
        """A file cannot be read, or can be read again."""
        if picked := self._pick(source):
            failures = ["timeout", "not_found", "http_404"]
            picked[2].failure = None if picked[2].failure else self._random.choice(failures)

    def _share(self, source: str) -> None:
        """List an image of the other source, or another one with its id."""
        [other] = {*SOURCES} - {source}
        if picked := self._pick(other):
            uri = picked[1].uri if self._random.random() < 0.6 else self._place()
            self._entries[source][picked[0]] = _Entry(uri, self._label())

    def _refuse(self, source: str) -> None:
        """An id is listed twice, a line cannot be read, or neither any longer."""
        if self._refused[source]:
            self._refused[source].clear()
        elif picked := self._pick(source):
            self._refused[source][f"{picked[0]} (duplicate 2)"] = picked[1].uri, "duplicate_id"
            self._refused[source]["list.csv#line=9"] = None, "bad_line"

    def images(self, source: str, *, complete: bool) -> list[Image]:
        """The listing. If it is not complete, some of its images are unknown because a part cannot be read."""
        entries = self._entries[source]
        names = [name for name in entries if complete or self._random.random() < 0.6]
        images = [self._image(name, entries[name]) for name in names]
        part = {} if complete else {"part.tar": (f"{source}/part.tar", UNREADABLE)}
        for name, (uri, reason) in {**self._refused[source], **part}.items():
            refusal = {"error_stage": REFUSED_STAGE, "error_reason": reason, "retryable": False}
            images.append(dict.fromkeys(COLUMNS) | {"image_id": name, "uri": uri} | refusal)
        return images

    def _image(self, name: str, entry: _Entry) -> Image:
        file, place = self.files[entry.uri], entry.uri.rpartition("/")[0]
        image = dict.fromkeys(COLUMNS) | {"image_id": name, "uri": entry.uri, "label": entry.label}
        if place == "http://host":
            if not file.failure and self._random.random() < 0.4:
                self._found[entry.uri] = HASHES[file.content]  # a job looked again
            image["content_hash"] = self._found.get(entry.uri)
        elif place != "/bare" and file.failure != "not_found":
            image |= {"size": len(data_of(file.content)), "modified": file.modified}
            image["etag"] = HASHES[file.content][:8] if place == "s3://bucket" else None
        return image

    def download(self, uri: str) -> Download:
        """Stands for `Fetcher.download`."""
        file = self.files[uri]
        if file.failure:
            raise FetchError(file.failure, f"{uri}: {file.failure}", retryable=file.failure == "timeout")
        return Download(data=data_of(file.content))

    def hash_of(self, uri: str | None) -> str | None:
        file = self.files.get(uri or "")
        if file is None or file.failure:
            return None if file and file.failure == "timeout" else ""
        return HASHES[file.content]


def table_of(images: list[Image]) -> pa.Table:
    """The listing. Like those of sources without web addresses or refused images, it may lack their columns."""
    columns = {name: [image[name] for image in images] for name in LISTING.names}
    listing = listing_table(columns, {"label": pa.array([image["label"] for image in images], TEXT)})
    if any(image["content_hash"] for image in images):
        listing = listing.append_column("content_hash", pa.array([image["content_hash"] for image in images], TEXT))
    reasons = {
        at: tuple(image[name] for name in REFUSAL.names) for at, image in enumerate(images) if image["error_reason"]
    }
    return refuse(listing, reasons) if reasons else listing
