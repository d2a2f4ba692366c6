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

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from embedder.images.decoder_worker import run; run(*map(int, sys.argv[2:]))"
)
_ENVIRONMENT: Final = {
    # The memory of a large picture goes back as soon as it is freed; by default glibc would begin to keep it.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
    "MALLOC_ARENA_MAX": "1",
    # NumPy's threads, each with address space of its own: nothing here uses them.
    "OPENBLAS_NUM_THREADS": "1",
}
_GRACE_S: Final = 1.0
"""For the process to die of its own timer before it is killed."""
_LOOK_MS: Final = 100
"""Between two looks whether the answer is still wanted."""


class DiedError(Exception):
    """The process ended instead of answering. `signal` is what it died of; 0: it ended by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(f"ended with status {status}")
        self.signal = max(0, -status)

    def rejection(self, timeout_s: float) -> ImageError:
        match self.signal:
            case signal.SIGALRM:
                message = f"decoding took longer than {timeout_s:g} s and was stopped; save it anew, smaller"
                return ImageError("decode_timeout", message)
            case signal.SIGKILL:
                message = "the system killed the decoder, as it does when memory runs out; free some"
                return ImageError("out_of_memory", message, retryable=True)
            case _:
                return ImageError("decode_died", f"the decoder died of this picture ({self}); save it anew")


class AbandonedError(Exception):
    """Nobody waits for the answer any more, or the process was killed by its owner."""


class DecodeProcess:
    """A process that may take `memory` bytes besides what its libraries take. For one thread at a time.

    It starts in a tenth of a second, beside its caller. It has a process group of its own: Ctrl-C is not for it.
    """

    def __init__(self, memory: int, niceness: int) -> None:
        self._is_killed = False
        self._connection, theirs = Pipe()
        with theirs:
            # Not by multiprocessing, which would run the caller's main module again in the child.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno()), str(memory), str(niceness)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env={**os.environ, **_ENVIRONMENT},
            )
        self._answered = select.poll()
        self._answered.register(self._connection.fileno(), select.POLLIN)

    def ask(self, task: Task, data: bytes, is_awaited: Callable[[], bool]) -> Answer:
        """The answer to a task; raises DiedError, and AbandonedError once `is_awaited` is false or after `kill`. Then
        the process is dead or to be killed.
        """
        give_up = monotonic() + task["wall_s"] + _GRACE_S
        try:
            self._connection.send_bytes(json.dumps(task).encode())
            self._connection.send_bytes(data)
            while not self._answered.poll(_LOOK_MS):
                if not is_awaited():
                    raise AbandonedError
                if monotonic() > give_up:
                    raise DiedError(-signal.SIGALRM)
            return json.loads(self._connection.recv_bytes()), self._connection.recv_bytes()
        except (EOFError, OSError):
            if self._is_killed:
                raise AbandonedError from None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self.kill()
            raise DiedError(self._process.returncode) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process, whatever it does, and wait for it. From any thread: one that asks gets AbandonedError."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()
