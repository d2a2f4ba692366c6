"""Decodes pictures in processes with a deadline and a memory limit. If one dies, only its picture is lost.

A picture goes to the processes for large ones, or those for heavy ones, if its header asks for more time or memory
than the lighter ones may take, or if it needs more anyway.

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
from typing import Final, NamedTuple

import numpy as np
from PIL import Image

from embedder.errors import ImageError
from embedder.images.decode import CropSpec, DecodedImage
from embedder.images.decoder_process import Answer, DecodeProcess, IsAwaited, ReadPart, Task, abandoned_error
from embedder.images.limits import ACCEPTED_LIMITS, DEFAULT_LIMITS, ImageLimits
from embedder.images.signature import Signature
from embedder.machine import usable_cpus, usable_memory


class _Weight(NamedTuple):
    """The most that pictures of a lane may take: bytes and seconds by the estimate from their header; and CPU seconds
    (0: no limit), as estimates may be too low, and a busy machine must make no picture heavier.
    """

    memory: int
    seconds: float
    cpu_s: float
    niceness: int


_NORMAL: Final = _Weight(64 * 2**20, 0.2, 1.0, 0)  # up to a JPEG of 20 megapixels
_LARGE: Final = _Weight(512 * 2**20, 2.0, 4.0, 5)  # up to a HEIC of 36, or a PNG of 60 megapixels
_HEAVY: Final = _Weight(DEFAULT_LIMITS.max_memory, float("inf"), 0, 10)
_HEAVIER: Final = frozenset({"too_much_memory", "too_slow", "out_of_memory"})
# Address space for the file, and for whatever the estimate leaves out.
_SLACK: Final = 256 * 2**20
_POLL_S: Final = 0.1


class DecodePool:
    """`workers` processes for normal pictures (None: one for each core), as many for large and for heavy ones, if these
    could fill a quarter and an eighth of the memory at most, but at least one. Thread-safe; blocks.

    They start when first needed. Decoding may take `timeout_s`. A picture waits for a process for at most `max_wait_s`,
    and a large or heavy one behind at most `max_waiting` others of its kind; by default there is no limit. The
    processes end with `close`, with the pool, or with the process that owns it, even if that is killed.
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
        workers = workers or usable_cpus()
        # A large picture takes far less than its limit mostly, a heavy one may be hostile.
        large, heavy = (
            max(1, min(workers, usable_memory() // share // each.memory)) for each, share in ((_LARGE, 4), (_HEAVY, 8))
        )
        counts = {_NORMAL: (workers, sys.maxsize), _LARGE: (large, max_waiting), _HEAVY: (heavy, max_waiting)}
        self._lanes = {
            weight: Lane(weight.memory + _SLACK, niceness=weight.niceness, count=count, max_waiting=waiting)
            for weight, (count, waiting) in counts.items()
        }

    @property
    def processes(self) -> list[int]:
        return [pid for lane in self._lanes.values() for pid in lane.processes]

    def start(self) -> None:
        """Start the processes for normal pictures, so that the first picture need not wait. Returns at once."""
        self._lanes[_NORMAL].start()

    def close(self) -> None:
        """Kill the processes and abandon their pictures. A pool that is used again starts new ones."""
        for lane in self._lanes.values():
            lane.close()

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

    def whole_picture(self, data: bytes, max_pixels: int) -> Image.Image:
        """`embedder.images.signature.whole_picture`; raises as `decode`."""
        facts, pixels = self._answer({"max_pixels": max_pixels}, data, ACCEPTED_LIMITS)
        return Image.frombytes("RGB", tuple(facts["size"]), pixels)

    def _answer(self, task: Task, data: bytes, limits: ImageLimits, is_awaited: IsAwaited = lambda: True) -> Answer:
        limits.check_bytes(data)
        wait_until = monotonic() + self._max_wait_s

        def ask(weight: _Weight) -> Answer:
            memory, seconds = min(limits.max_memory, weight.memory), min(limits.max_seconds, weight.seconds)
            lane_limits = asdict(replace(limits, max_memory=memory, max_seconds=seconds))
            times = {"cpu_s": weight.cpu_s, "wall_s": self._timeout_s}
            return self._lanes[weight].ask({**task, "limits": lane_limits, **times}, data, is_awaited, wait_until)

        *lighter, heaviest = self._lanes
        for weight in lighter:
            try:
                return ask(weight)
            except ImageError as error:
                if error.reason not in _HEAVIER:
                    raise
        return ask(heaviest)


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
