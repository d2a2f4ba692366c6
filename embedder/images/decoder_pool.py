"""Decodes pictures in processes that are killed at a deadline and limited in memory. One that dies costs one picture.

A picture goes to the only process for heavy ones if its header says that it takes much, or if it takes much anyway.

The pools of kept libraries (pebble, deadpool, loky) start their processes by multiprocessing, which runs the caller's
main module again in each, so that a notebook or script without a `__main__` guard fails; and they take two to three
times as long for a task. This one has no threads, which could outlive their owner.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import Final

import numpy as np

from embedder.errors import ImageError
from embedder.images.decode import CropSpec, DecodedImage
from embedder.images.decoder_process import Answer, DecodeProcess, IsAwaited, ReadPart, Task, abandoned
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits
from embedder.images.signature import Signature

# What the header of a usual picture says at most. A JPEG of 20 megapixels is one.
_USUAL_MEMORY: Final = 64 * 2**20
_USUAL_SECONDS: Final = 0.2
# An estimate may be too low. In CPU time: a busy machine makes no picture heavy.
_USUAL_CPU_S: Final = 1.0
_HEAVY_REASONS: Final = frozenset({"too_much_memory", "too_slow", "out_of_memory"})
# Address space for the file itself, and for what an estimate leaves out.
_SLACK: Final = 256 * 2**20
_HEAVY_NICENESS: Final = 10
_POLL_S: Final = 0.1


class DecodePool:
    """`workers` processes for usual pictures (None: one for each core) and one for heavy ones. Thread-safe; blocks.

    They are started when first needed. A picture may take `timeout_s`, and waits at most `max_wait_s` for a process,
    behind at most `max_waiting` other heavy ones; by default without limit. The processes end with `close`, with the
    pool, and with the process that has it, however that ends.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        timeout_s: float = 60.0,
        max_wait_s: float = float("inf"),
        max_waiting: int = sys.maxsize,
    ) -> None:
        self._timeout_s = timeout_s
        self._max_wait_s = max_wait_s
        self._started: set[DecodeProcess] = set()
        usual = partial(DecodeProcess, _USUAL_MEMORY + _SLACK, 0)
        heavy = partial(DecodeProcess, DEFAULT_LIMITS.max_memory + _SLACK, _HEAVY_NICENESS)
        self._usual = Lane(workers or os.cpu_count() or 1, sys.maxsize, usual, self._started)
        self._heavy = Lane(1, max_waiting, heavy, self._started)
        weakref.finalize(self, kill_all, self._started)

    @property
    def processes(self) -> list[int]:
        return [process.pid for process in list(self._started) if process.is_alive]

    def start(self) -> None:
        """Start the processes for usual pictures, so that the first picture need not wait for one. Returns at once."""
        self._usual.start()

    def close(self) -> None:
        """Kill the processes: what they decode is given up. A pool that is used again starts others."""
        kill_all(self._started)

    def decode(
        self,
        data: bytes,
        crop: CropSpec,
        *,
        limits: ImageLimits = DEFAULT_LIMITS,
        draft: bool = True,
        exif: bool = False,
        is_awaited: IsAwaited = lambda: True,
    ) -> DecodedImage:
        """`embedder.images.decode.decode_image`, given up once `is_awaited` does not hold. Raises `ImageError`.

        Further reasons: decode_timeout, decode_died, decode_abandoned; decoders_busy if no process is free in time.
        """
        facts, pixels = self._answer({"crop": asdict(crop), "draft": draft, "exif": exif}, data, limits, is_awaited)
        return DecodedImage(pixels=np.frombuffer(pixels, np.uint8).reshape(crop.shape), **facts)

    def thumbnail(
        self, data: bytes, max_side: int, *, limits: ImageLimits = DEFAULT_LIMITS, is_awaited: IsAwaited = lambda: True
    ) -> bytes:
        """`embedder.images.decode.thumbnail`; raises as `decode`."""
        return self._answer({"side": max_side}, data, limits, is_awaited)[1]

    def signature(self, data: bytes, side: int) -> Signature:
        """`embedder.images.signature.signature`; raises as `decode`."""
        facts, pixels = self._answer({"signature": side}, data, DEFAULT_LIMITS, lambda: True)
        return Signature(pixels=np.frombuffer(pixels, np.uint8).reshape(side, side, 3), **facts)

    def _answer(self, task: Task, data: bytes, limits: ImageLimits, is_awaited: IsAwaited) -> Answer:
        limits.check_bytes(data)
        wait_until = monotonic() + self._max_wait_s
        memory, seconds = min(limits.max_memory, _USUAL_MEMORY), min(limits.max_seconds, _USUAL_SECONDS)
        usual = replace(limits, max_memory=memory, max_seconds=seconds)
        task = {**task, "limits": asdict(usual), "cpu_s": _USUAL_CPU_S, "wall_s": self._timeout_s}
        try:
            return self._usual.ask(task, data, is_awaited, wait_until)
        except ImageError as error:
            if error.reason not in _HEAVY_REASONS:
                raise
        return self._heavy.ask({**task, "limits": asdict(limits), "cpu_s": 0}, data, is_awaited, wait_until)


class Lane:
    """Up to `count` processes, and at most `max_waiting` callers who wait for one. Thread-safe."""

    def __init__(
        self, count: int, max_waiting: int, make: Callable[[], DecodeProcess], started: set[DecodeProcess]
    ) -> None:
        self._count = count
        self._make = make
        self._started = started
        self._idle: list[DecodeProcess] = []
        self._free = threading.Semaphore(count)
        self._room = threading.Semaphore(count + max_waiting)

    def start(self) -> None:
        while len(self._idle) < self._count:
            self._idle.append(self._start_one())

    def ask(
        self, task: Task, data: bytes, is_awaited: IsAwaited, wait_until: float, read: ReadPart | None = None
    ) -> Answer:
        """What a process answers; raises ImageError."""
        with ExitStack() as turn:
            if not self._room.acquire(blocking=False):
                raise _busy()
            turn.callback(self._room.release)
            while not self._free.acquire(timeout=_POLL_S):
                if not is_awaited():
                    raise abandoned()
                if monotonic() > wait_until:
                    raise _busy()
            turn.callback(self._free.release)
            process = self._take()
            turn.callback(self._idle.append, process)
            return process.ask(task, data, is_awaited, read)

    def _take(self) -> DecodeProcess:
        """An idle process that is alive, else a new one. That one was killed is not the next picture's fault."""
        with suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                self._started.discard(process)
        return self._start_one()

    def _start_one(self) -> DecodeProcess:
        process = self._make()
        self._started.add(process)
        return process


def _busy() -> ImageError:
    return ImageError("decoders_busy", "too many pictures are being decoded: come back soon", retryable=True)


def kill_all(started: set[DecodeProcess]) -> None:
    for process in list(started):
        process.kill()
