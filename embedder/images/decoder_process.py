"""The caller's side of a process that decodes pictures, which runs `embedder.images.decoder_worker`."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Pipe
from time import monotonic
from typing import Any, Final

from embedder.errors import ImageError
from embedder.python_process import python_command

Answer = tuple[dict[str, Any], bytes]
Task = dict[str, Any]
IsAwaited = Callable[[], bool]
ReadPart = Callable[[int, int], bytes]
"""Position and count → up to so many bytes of a file."""

_ENVIRONMENT: Final = {
    # Returns the memory of large pictures to the system; by default glibc would begin to keep it.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
    "MALLOC_ARENA_MAX": "1",
    # Each of NumPy's threads would take address space, and nothing here uses them.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",  # LibRaw's
}
_GRACE_S: Final = 1.0
"""How long to wait for the process's own timer before it is killed."""
_POLL_MS: Final = 100
"""How often to check whether the answer is still awaited."""


class DecodeProcess:
    """A process that may use `memory` bytes in addition to its libraries. For one thread at a time.

    It starts in a tenth of a second, while its caller goes on. It has its own process group, so Ctrl-C does not end it.
    """

    def __init__(self, memory: int, niceness: int, worker: str = "embedder.images.decoder_worker") -> None:
        self._is_killed = False
        self._connection, child = Pipe()
        with child:
            # Not with multiprocessing, which would run the caller's main module again in the child.
            self._process = subprocess.Popen(
                python_command(worker, child.fileno(), memory, niceness),
                stdin=subprocess.DEVNULL,
                pass_fds=(child.fileno(),),
                process_group=0,
                env={**os.environ, **_ENVIRONMENT},
            )
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)

    def ask(self, task: Task, data: bytes, is_awaited: IsAwaited, read: ReadPart | None = None) -> Answer:
        """The answer to a task; raises ImageError. If the process has not answered, it is killed.

        If it asks for parts of a file, `read` provides them. Its exceptions are passed on; it must not raise OSError.
        """
        deadline = monotonic() + task["wall_s"] + _GRACE_S
        try:
            self._connection.send_bytes(json.dumps(task).encode())
            self._connection.send_bytes(data)
            while True:
                while not self._poll.poll(_POLL_MS):
                    if not is_awaited():
                        raise abandoned_error()
                    if monotonic() > deadline:
                        raise _exit_error(-signal.SIGALRM, task["wall_s"])
                facts, payload = json.loads(self._connection.recv_bytes()), self._connection.recv_bytes()
                if read is None or "read" not in facts:
                    break
                self._connection.send_bytes(read(*facts["read"]))
        except (EOFError, OSError):
            if self._is_killed:
                raise abandoned_error() from None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self.kill()
            raise _exit_error(self._process.returncode, task["wall_s"]) from None
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
        """Kill the process and wait for its end. From any thread: a concurrent `ask` raises `abandoned_error`."""
        self._is_killed = True
        self._process.kill()
        self._process.wait()


def abandoned_error() -> ImageError:
    return ImageError("decode_abandoned", "decoding was stopped: nobody waits for it", retryable=True)


def _exit_error(status: int, timeout_s: float) -> ImageError:
    """Why a process ended with this status (`Popen.returncode`) instead of answering."""
    match -status:
        case signal.SIGALRM:
            message = f"decoding took longer than {timeout_s:g} s and was stopped; save it again, smaller"
            return ImageError("decode_timeout", message)
        case signal.SIGPROF:
            return ImageError("too_slow", "decoding takes more time than the picture's header says; save it again")
        case signal.SIGKILL:
            message = "the system killed the decoder, probably because memory ran out; free some"
            return ImageError("out_of_memory", message, retryable=True)
    return ImageError("decode_died", f"the decoder crashed on this picture (exit status {status}); save it again")
