"""Decodes pictures in processes with a deadline and a memory limit. If one dies, only its picture is lost.

A picture goes to the process for heavy ones if its header asks for much time or memory, or if it needs much anyway.

The pools of maintained libraries (pebble, deadpool, loky) start their processes with multiprocessing, which runs the
caller's main module again in each, so a notebook or script without a `__main__` guard fails; and they take two to three
times as long for a task. This pool has no threads, which could outlive their owner.
"""

import sys
import threading
import weakref
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import Final

import numpy as np
from PIL import Image

from embedder.cpus import usable_cpus
from embedder.errors import ImageError
from embedder.images.decode import CropSpec, DecodedImage
from embedder.images.decoder_process import Answer, DecodeProcess, IsAwaited, ReadPart, Task, abandoned_error
from embedder.images.limits import ACCEPTED_LIMITS, DEFAULT_LIMITS, ImageLimits
from embedder.images.signature import Signature

# The highest estimates from its header that a normal picture has, such as a JPEG of 20 megapixels.
_NORMAL_MEMORY: Final = 64 * 2**20
_NORMAL_SECONDS: Final = 0.2
# Estimates may be too low. In CPU time, so that a busy machine makes no picture heavy.
_NORMAL_CPU_S: Final = 1.0
_HEAVY_REASONS: Final = frozenset({"too_much_memory", "too_slow", "out_of_memory"})
# Address space for the file, and for whatever the estimate leaves out.
_SLACK: Final = 256 * 2**20
_HEAVY_NICENESS: Final = 10
_POLL_S: Final = 0.1


class DecodePool:
    """`workers` processes for normal pictures (None: one for each core) and one for heavy ones. Thread-safe; blocks.

    They start when first needed. Decoding may take `timeout_s`. A picture waits for a process for at most `max_wait_s`,
    and a heavy one behind at most `max_waiting` others; by default there is no limit. The processes end with `close`,
    with the pool, or with the process that owns it, even if that is killed.
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
        self._normal = Lane(_NORMAL_MEMORY + _SLACK, count=workers)
        memory = DEFAULT_LIMITS.max_memory + _SLACK
        self._heavy = Lane(memory, niceness=_HEAVY_NICENESS, count=1, max_waiting=max_waiting)

    @property
    def processes(self) -> list[int]:
        return [*self._normal.processes, *self._heavy.processes]

    def start(self) -> None:
        """Start the processes for normal pictures, so that the first picture need not wait. Returns at once."""
        self._normal.start()

    def close(self) -> None:
        """Kill the processes and abandon their pictures. A pool that is used again starts new ones."""
        self._normal.close()
        self._heavy.close()

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
        """`embedder.images.decode.decode_image`, abandoned when `is_awaited` returns False. Raises `ImageError`.

        Additional reasons: decode_timeout, decode_died, decode_abandoned; decoders_busy if no process is free in time.
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
        facts, pixels = self._answer({"signature": side}, data, ACCEPTED_LIMITS)
        return Signature(pixels=np.frombuffer(pixels, np.uint8).reshape(side, side, 3), **facts)

    def whole_picture(self, data: bytes, max_pixels: int, *, limits: ImageLimits = DEFAULT_LIMITS) -> Image.Image:
        """`embedder.images.signature.whole_picture`; raises as `decode`."""
        facts, pixels = self._answer({"max_pixels": max_pixels}, data, limits)
        return Image.frombytes("RGB", tuple(facts["size"]), pixels)

    def _answer(self, task: Task, data: bytes, limits: ImageLimits, is_awaited: IsAwaited = lambda: True) -> Answer:
        limits.check_bytes(data)
        wait_until = monotonic() + self._max_wait_s
        memory, seconds = min(limits.max_memory, _NORMAL_MEMORY), min(limits.max_seconds, _NORMAL_SECONDS)
        normal = replace(limits, max_memory=memory, max_seconds=seconds)
        task = {**task, "limits": asdict(normal), "cpu_s": _NORMAL_CPU_S, "wall_s": self._timeout_s}
        try:
            return self._normal.ask(task, data, is_awaited, wait_until)
        except ImageError as error:
            if error.reason not in _HEAVY_REASONS:
                raise
        return self._heavy.ask({**task, "limits": asdict(limits), "cpu_s": 0}, data, is_awaited, wait_until)


class Lane:
    """`count` processes of `memory` bytes (None: one for each core), which start when first needed and end with the
    lane; at most `max_waiting` callers wait for one. Thread-safe.
    """

    def __init__(
        self,
        memory: int,
        *,
        worker: str = "embedder.images.decoder_worker",
        niceness: int = 0,
        count: int | None = None,
        max_waiting: int = sys.maxsize,
    ) -> None:
        self._count = count or usable_cpus()
        self._make = partial(DecodeProcess, memory, niceness, worker)
        self._started, self._idle = set[DecodeProcess](), list[DecodeProcess]()
        self._free_processes = threading.Semaphore(self._count)
        self._free_places = threading.Semaphore(self._count + max_waiting)
        weakref.finalize(self, _kill_all, self._started)

    @property
    def processes(self) -> list[int]:
        return [process.pid for process in list(self._started) if process.is_alive]

    def start(self) -> None:
        while len(self._idle) < self._count:
            self._idle.append(self._start_one())

    def close(self) -> None:
        _kill_all(self._started)

    def ask(
        self,
        task: Task,
        data: bytes,
        is_awaited: IsAwaited = lambda: True,
        wait_until: float = float("inf"),
        read: ReadPart | None = None,
    ) -> Answer:
        """A process's answer; raises ImageError."""
        with ExitStack() as stack:
            if not self._free_places.acquire(blocking=False):
                raise _busy_error()
            stack.callback(self._free_places.release)
            while not self._free_processes.acquire(timeout=_POLL_S):
                if not is_awaited():
                    raise abandoned_error()
                if monotonic() > wait_until:
                    raise _busy_error()
            stack.callback(self._free_processes.release)
            process = self._take()
            stack.callback(self._idle.append, process)
            return process.ask(task, data, is_awaited, read)

    def _take(self) -> DecodeProcess:
        """An idle process that is alive, else a new one."""
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


def _busy_error() -> ImageError:
    return ImageError("decoders_busy", "too many pictures are being decoded: try again soon", retryable=True)


def _kill_all(started: set[DecodeProcess]) -> None:
    for process in list(started):
        process.kill()
