"""Decodes pictures in processes that are killed at a deadline and limited in memory.

A picture of a few hundred bytes can take gigabytes and hours, and a thread that decodes it cannot be stopped. Usual
pictures go to one of several processes. One whose header says that it takes much, or that takes much anyway, goes
to the only process for heavy ones: whatever strangers send, usual pictures find a process, and there is a bound to the
memory of them all. A process that dies costs one picture.

The pools of kept libraries (pebble, deadpool, loky) start their processes by multiprocessing, which runs the caller's
main module again in each, so that a notebook or script without a `__main__` guard fails; and they take two to three
times as long for a task. This one has no threads, which could outlive their owner.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from signal import SIGPROF
from time import monotonic
from typing import Final

import numpy as np

from embedder.errors import ImageError
from embedder.images.decode import CropSpec, DecodedImage
from embedder.images.decoder_process import AbandonedError, Answer, DecodeProcess, DiedError, Task
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits

# For one's own pictures, which may be the largest that there are.
_TIMEOUT_S: Final = 60.0
# What the header of a usual picture says at most. A JPEG of 20 megapixels is one.
_USUAL_MEMORY: Final = 64 * 2**20
_USUAL_SECONDS: Final = 0.2
# An estimate may be too low. In CPU time: a busy machine makes no picture heavy.
_USUAL_CPU_S: Final = 1.0
_HEAVY_REASONS: Final = frozenset({"too_much_memory", "too_slow", "out_of_memory"})
# Address space for the file itself, and for what an estimate leaves out.
_SLACK: Final = 256 * 2**20
_HEAVY_NICENESS: Final = 10
_LOOK_S: Final = 0.1

IsAwaited = Callable[[], bool]


def _always() -> bool:
    return True


class DecodePool:
    """`workers` processes for usual pictures (None: one for each core) and one for heavy ones. Thread-safe; blocks.

    They are started when first needed. A picture may take `timeout_s`, and waits at most `max_wait_s` for a process,
    behind at most `max_waiting` other heavy ones; None: no limit. The processes end with `close`, with the pool, and
    with the process that has it, however that ends.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        max_wait_s: float | None = None,
        max_waiting: int | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._max_wait_s = max_wait_s
        self._alive: set[DecodeProcess] = set()
        memory = DEFAULT_LIMITS.max_memory + _SLACK
        self._usual = _Lane(
            workers or os.cpu_count() or 1, partial(DecodeProcess, _USUAL_MEMORY + _SLACK, 0), self._alive, None
        )
        self._heavy = _Lane(1, partial(DecodeProcess, memory, _HEAVY_NICENESS), self._alive, max_waiting)
        weakref.finalize(self, _kill_all, self._alive)

    @property
    def processes(self) -> list[int]:
        return [process.pid for process in self._alive]

    def start(self) -> None:
        """Start the processes for usual pictures, so that the first picture need not wait for one. Returns at once."""
        self._usual.start()

    def close(self) -> None:
        """Kill the processes: what they decode is given up. A pool that is used again starts others."""
        _kill_all(self._alive)

    def decode(
        self,
        data: bytes,
        crop: CropSpec,
        *,
        limits: ImageLimits = DEFAULT_LIMITS,
        draft: bool = True,
        is_awaited: IsAwaited = _always,
    ) -> DecodedImage:
        """`embedder.images.decode.decode_image`, given up once `is_awaited` does not hold. Raises `ImageError`.

        Further reasons: decode_timeout, decode_died, decode_abandoned; decoders_busy if no process is free in time.
        """
        facts, pixels = self._answer({"crop": asdict(crop), "draft": draft}, data, limits, is_awaited)
        shaped = np.frombuffer(pixels, np.uint8).reshape(crop.side, crop.side, 3)
        return DecodedImage(pixels=shaped, width=facts["width"], height=facts["height"], format=facts["format"])

    def thumbnail(
        self, data: bytes, max_side: int, *, limits: ImageLimits = DEFAULT_LIMITS, is_awaited: IsAwaited = _always
    ) -> bytes:
        """`embedder.images.decode.thumbnail`; raises as `decode`."""
        return self._answer({"side": max_side}, data, limits, is_awaited)[1]

    def _answer(self, task: Task, data: bytes, limits: ImageLimits, is_awaited: IsAwaited) -> Answer:
        limits.check_bytes(data)
        patience_ends = float("inf") if self._max_wait_s is None else monotonic() + self._max_wait_s
        try:
            facts, payload = self._as_usual(task, data, limits, is_awaited, patience_ends)
            if facts.get("reason") in _HEAVY_REASONS:
                with self._heavy.process(is_awaited, patience_ends) as process:
                    asked = {**task, "limits": asdict(limits), "cpu_s": 0, "wall_s": self._timeout_s}
                    facts, payload = process.ask(asked, data, is_awaited)
        except DiedError as died:
            raise died.rejection(self._timeout_s) from None
        except AbandonedError:
            raise ImageError("decode_abandoned", "decoding was given up: nobody waits for it", retryable=True) from None
        if "reason" in facts:
            raise ImageError(facts["reason"], facts["message"], retryable=facts["retryable"])
        return facts, payload

    def _as_usual(
        self, task: Task, data: bytes, limits: ImageLimits, is_awaited: IsAwaited, patience_ends: float
    ) -> Answer:
        """What a process for usual pictures says, which refuses heavy ones."""
        low = replace(
            limits,
            max_memory=min(limits.max_memory, _USUAL_MEMORY),
            max_seconds=min(limits.max_seconds, _USUAL_SECONDS),
        )
        asked = {**task, "limits": asdict(low), "cpu_s": _USUAL_CPU_S, "wall_s": self._timeout_s}
        try:
            with self._usual.process(is_awaited, patience_ends) as process:
                return process.ask(asked, data, is_awaited)
        except DiedError as died:
            if died.signal != SIGPROF:
                raise
            return {"reason": "too_slow"}, b""


class _Lane:
    """Up to `count` processes, and those who wait for one, at most `max_waiting`. Thread-safe."""

    def __init__(
        self, count: int, make: Callable[[], DecodeProcess], alive: set[DecodeProcess], max_waiting: int | None
    ) -> None:
        self._count = count
        self._make = make
        self._alive = alive
        self._idle: list[DecodeProcess] = []
        self._free = threading.Semaphore(count)
        self._room = None if max_waiting is None else threading.Semaphore(count + max_waiting)

    def start(self) -> None:
        while len(self._idle) < self._count:
            self._idle.append(self._started())

    @contextmanager
    def process(self, is_awaited: IsAwaited, patience_ends: float) -> Iterator[DecodeProcess]:
        """A process, for as long as the block lasts; if that raises, the process is killed."""
        with self._turn(is_awaited, patience_ends):
            try:
                process = self._idle.pop()
            except IndexError:
                process = self._started()
            else:
                if not process.is_alive:  # killed between two pictures, which is not the next one's fault
                    self._end(process)
                    process = self._started()
            try:
                yield process
            except BaseException:
                self._end(process)
                raise
            self._idle.append(process)

    @contextmanager
    def _turn(self, is_awaited: IsAwaited, patience_ends: float) -> Iterator[None]:
        if self._room is not None and not self._room.acquire(blocking=False):
            raise _busy()
        try:
            while not self._free.acquire(timeout=_LOOK_S):
                if not is_awaited():
                    raise AbandonedError
                if monotonic() > patience_ends:
                    raise _busy()
            try:
                yield
            finally:
                self._free.release()
        finally:
            if self._room is not None:
                self._room.release()

    def _started(self) -> DecodeProcess:
        process = self._make()
        self._alive.add(process)
        return process

    def _end(self, process: DecodeProcess) -> None:
        process.kill()
        self._alive.discard(process)


def _busy() -> ImageError:
    return ImageError("decoders_busy", "too many pictures are being decoded: come back soon", retryable=True)


def _kill_all(alive: set[DecodeProcess]) -> None:
    for process in list(alive):
        process.kill()
        alive.discard(process)
