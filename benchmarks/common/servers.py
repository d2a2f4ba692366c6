"""The servers that are compared, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.serve.report import ENDPOINT, LOCAL, SERVE

_START_S = 180.0
_STOP_S = 60.0
# By default a small machine has fewer searches at once and refuses the others.
_EVERY_CLIENT = 64


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server on this machine."""

    port: int
    process: psutil.Process

    def resident_mib(self) -> float:
        """Memory of the process and of all that it started that is theirs alone, shared pages in parts."""
        total = 0
        for each in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss
        return total / 2**20

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and of all that it started, Ray's included."""
        seconds = 0.0
        for each in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                seconds += times.user + times.system
        return seconds


@contextmanager
def serving(
    location: str,
    model: str,
    folder: Path,
    *,
    names: Sequence[str] = (ENDPOINT, LOCAL, SERVE),
    max_searches: int | None = _EVERY_CLIENT,
) -> Iterator[dict[str, Server]]:
    """Servers of the collection while the block lasts, by name. Their logs go into `folder`."""
    likeness = [sys.executable, "-m", "jobs", "serve", location, "--model", model, "--port"]
    commands: dict[str, Callable[[str], list[str]]] = {
        ENDPOINT: lambda port: [sys.executable, "-m", "benchmarks.serve.bare", location, model, port],
        LOCAL: lambda port: [*likeness, port, "--local"],
        SERVE: lambda port: [*likeness, port],
    }
    with ExitStack() as stack:
        servers = {}
        for name, command in ((name, commands[name]) for name in names):
            port = _free_port()
            log = folder / f"{port}.log"
            process = stack.enter_context(_running(command(str(port)), log, max_searches))
            servers[name] = Server(port=port, process=psutil.Process(process.pid))
            if not _answers(process, port):
                said = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"expected {name!r} to answer within {_START_S:g} s; its log ends with:\n{said}")
        yield servers


@contextmanager
def _running(command: list[str], log: Path, max_searches: int | None) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "LIKENESS_EMBEDDING_CACHE_BYTES": "0",
        **({} if max_searches is None else {"LIKENESS_MAX_SEARCHES": str(max_searches)}),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Waits until the server does; False when it takes too long or has ended."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
