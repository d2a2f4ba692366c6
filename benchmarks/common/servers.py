"""Servers in separate processes: start, wait for, measure and stop them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

_START_S = 300.0
_STOP_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ready(self, path: str = "/readyz") -> bool:
        """Whether it answers searches."""
        try:
            return requests.get(f"{self.url}{path}", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def version(self) -> str:
        """The index version it serves."""
        return str(requests.get(f"{self.url}/index", timeout=30).json()["version"])

    def replicas(self) -> list[psutil.Process]:
        """The processes with the model and the index: the server itself, or Ray Serve's replicas."""
        own = psutil.Process(self.process.pid)
        return replicas_of(own) or [own]

    def rss(self) -> int:
        """Memory of the replicas, in bytes."""
        return sum(each.memory_info().rss for each in self.replicas())

    def resident_mib(self) -> float:
        """Memory of the process and its descendants in MiB, with shared pages counted proportionally."""
        return self._sum(lambda each: each.memory_full_info().pss) / 2**20

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and its descendants, which include Ray's processes."""
        return self._sum(lambda each: sum(each.cpu_times()[:2]))

    def _sum(self, measure: Callable[[psutil.Process], float]) -> float:
        own, total = psutil.Process(self.process.pid), 0.0
        for each in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += measure(each)
        return total


@contextmanager
def serving(collection: str, log: Path, *arguments: str, **settings: object) -> Iterator[Server]:
    """Run `likeness serve COLLECTION ARGUMENTS` during the block, with `settings` as LIKENESS_* variables."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_") or "CACHE" in name
    }
    environment = {**inherited, **{f"LIKENESS_{name.upper()}": str(value) for name, value in settings.items()}}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    port = free_port()
    command = [sys.executable, "-m", "likeness", "serve", collection, "--port", str(port), *arguments]
    with running(command, port, log, environment) as server:
        yield server


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: dict[str, str] | None = None, *, ready: str = "/readyz"
) -> Iterator[Server]:
    """Run a command that serves on a local port during the block, which begins when it answers the path `ready`."""
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        server = Server(url=f"http://127.0.0.1:{port}", process=process, log=log)
        try:
            deadline = time.monotonic() + _START_S
            while not server.ready(ready):
                if process.poll() is not None or time.monotonic() >= deadline:
                    end = log.read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"expected {command} to serve within {_START_S:g} s; its log ends with:\n{end}")
                time.sleep(0.02)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def replicas_of(driver: psutil.Process) -> list[psutil.Process]:
    """The Ray Serve replicas among the descendants of a process."""
    return [each for each in driver.children(recursive=True) if _title(each).startswith("ray::ServeReplica")]


def free_port() -> int:
    """A free port, below those that Ray Serve's replicas and outgoing connections use."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
