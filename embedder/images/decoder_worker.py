"""A process that decodes pictures, so that a malicious picture harms nothing but this process.

`embedder.images.decoder_process` starts it. It reads a task and a picture's file from its socket, and answers with
facts and bytes. The caller unpickles nothing, so a picture that takes over its decoder gets no further.
"""

import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import AvifImagePlugin, Image

from embedder.errors import ImageError
from embedder.images.decode import CropSpec, decode_rgb, thumbnail
from embedder.images.limits import ImageLimits
from embedder.images.signature import signature, whole_picture

AnswerTask = Callable[[dict[str, Any], bytes, Connection], tuple[dict[str, Any], bytes]]


def run(descriptor: int, memory: int, niceness: int) -> None:
    """Decode pictures, see `answer_tasks`."""
    Image.MAX_IMAGE_PIXELS = None  # each task has limits of its own
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # otherwise one for each core, each of which allocates its own memory
    answer_tasks(_answer, descriptor, memory, niceness)


def answer_tasks(answer: AnswerTask, descriptor: int, memory: int, niceness: int) -> None:
    """Answer until the socket is closed. The process may allocate `memory` bytes in addition to its current ones."""
    if sys.platform == "linux":  # macOS does not enforce the limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(niceness)
    warnings.simplefilter("ignore")  # errors are part of the answer
    with Connection(descriptor) as caller:
        try:
            while True:
                task, data = json.loads(caller.recv_bytes()), caller.recv_bytes()
                _limit_time(task["cpu_s"], task["wall_s"])
                facts, payload = answer(task, data, caller)
                _limit_time(0, 0)
                del data
                caller.send_bytes(json.dumps(facts).encode())
                caller.send_bytes(payload)
        except (EOFError, OSError):
            return


def _limit_time(cpu_s: float, wall_s: float) -> None:
    """Kills the process with SIGPROF or SIGALRM after these times, even in C code: they have no handler; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _answer(task: dict[str, Any], data: bytes, _: Connection) -> tuple[dict[str, Any], bytes]:
    limits = ImageLimits(**task["limits"])
    try:
        if "side" in task:
            return {}, thumbnail(data, task["side"], limits=limits)
        if "signature" in task:
            return signature(data, task["signature"], limits=limits)
        if "max_pixels" in task:
            return whole_picture(data, task["max_pixels"], limits=limits)
        crop = CropSpec(**{**task["crop"], "resample": Image.Resampling(task["crop"]["resample"])})
        pixels, facts = decode_rgb(data, crop, limits=limits, draft=task["draft"], exif=task["exif"])
        return facts, pixels
    except ImageError as error:
        return vars(error), b""
