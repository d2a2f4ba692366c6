"""The caller's side of a process that decodes pictures; `embedder.images.decoder_worker` is the other side."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from time import monotonic
from typing import Any, Final

from embedder.errors import ImageError

Answer = tuple[dict[str, Any], bytes]
Task = dict[str, Any]
IsAwaited = Callable[[], bool]
ReadPart = Callable[[int, int], bytes]
"""The bytes of a file from a position on, at most so many."""

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from importlib import import_module; import_module(sys.argv[2]).run(*map(int, sys.argv[3:]))"
)
_ENVIRONMENT: Final = {
    # The memory of a large picture goes back as soon as it is freed; by default glibc would begin to keep it.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
    "MALLOC_ARENA_MAX": "1",
    # NumPy's threads, each with address space of its own: nothing here uses them.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",  # LibRaw's
}
_GRACE_S: Final = 1.0
"""For the process to die of its own timer before it is killed."""
_POLL_MS: Final = 100
"""How often to check whether the answer is still wanted."""


class DecodeProcess:
    """A process that may take `memory` bytes besides what its libraries take. For one thread at a time.

    It starts in a tenth of a second, beside its caller. It has a process group of its own: Ctrl-C is not for it.
    """

    def __init__(self, memory: int, niceness: int, worker: str = "embedder.images.decoder_worker") -> None:
        self._is_killed = False
        self._connection, theirs = Pipe()
        with theirs:
            numbers = (theirs.fileno(), memory, niceness)
            # Not by multiprocessing, which would run the caller's main module again in the child.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), worker, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env={**os.environ, **_ENVIRONMENT},
            )
        self._answered = select.poll()
        self._answered.register(self._connection.fileno(), select.POLLIN)

    def ask(self, task: Task, data: bytes, is_awaited: IsAwaited, read: ReadPart | None = None) -> Answer:
        """The answer to a task; raises ImageError. The process is dead unless it has answered.

        One that asks for parts of a file gets them by `read`, and passes on what that raises, but no OSError.
        """
        give_up = monotonic() + task["wall_s"] + _GRACE_S
        try:
            self._connection.send_bytes(json.dumps(task).encode())
            self._connection.send_bytes(data)
            while True:
                while not self._answered.poll(_POLL_MS):
                    if not is_awaited():
                        raise abandoned()
                    if monotonic() > give_up:
                        raise _death(-signal.SIGALRM, task["wall_s"])
                facts, payload = json.loads(self._connection.recv_bytes()), self._connection.recv_bytes()
                if read is None or "read" not in facts:
                    break
                self._connection.send_bytes(read(*facts["read"]))
        except (EOFError, OSError):
            if self._is_killed:
                raise abandoned() from None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self.kill()
            raise _death(self._process.returncode, task["wall_s"]) from None
        except BaseException:
            self.kill()
            raise
        if "reason" in facts:
            raise ImageError(**facts)
        return facts, payload

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process, whatever it does, and wait for it. From any thread: for one that asks, it is abandoned."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()


def abandoned() -> ImageError:
    return ImageError("decode_abandoned", "decoding was stopped: nobody waits for it", retryable=True)


def _death(status: int, timeout_s: float) -> ImageError:
    """Why a process ended with this status (of `Popen.returncode`) instead of answering."""
    match -status:
        case signal.SIGALRM:
            message = f"decoding took longer than {timeout_s:g} s and was stopped; save it again, smaller"
            return ImageError("decode_timeout", message)
        case signal.SIGPROF:
            return ImageError("too_slow", "decoding takes more time than the picture's header says; save it again")
        case signal.SIGKILL:
            message = "the system killed the decoder, as it does when memory runs out; free some"
            return ImageError("out_of_memory", message, retryable=True)
    return ImageError("decode_died", f"the decoder crashed on this picture (exit status {status}); save it again")
