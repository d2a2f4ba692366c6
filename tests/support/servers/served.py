"""`likeness serve` in a process of its own, as users start it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def version(self) -> str:
        """The index version that answers."""
        return str(requests.get(f"{self.url}/index", timeout=30).json()["version"])

    def replicas(self) -> list[psutil.Process]:
        """The processes that hold model and index: one, or Ray Serve's replicas."""
        own = psutil.Process(self.process.pid)
        return replicas_of(own) or [own]

    def rss(self) -> int:
        """Bytes of memory in use."""
        return sum(each.memory_info().rss for each in self.replicas())


@contextmanager
def serving(collection: str, log: Path, *arguments: str, **settings: object) -> Iterator[Served]:
    """`likeness serve COLLECTION ARGUMENTS` with LIKENESS_* set as `settings` say, while the block lasts."""
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_") or "CACHE" in name},
        **{f"LIKENESS_{name.upper()}": str(value) for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "jobs", "serve", collection, "--port", str(port), *arguments]
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        served = Served(url=f"http://127.0.0.1:{port}", process=process, log=log)
        try:
            deadline = time.monotonic() + 120
            while not served.ready():
                assert process.poll() is None, f"the server ended:\n{log.read_text()}"
                assert time.monotonic() < deadline, f"the server is not ready:\n{log.read_text()}"
                time.sleep(0.1)
            yield served
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def replicas_of(driver: psutil.Process) -> list[psutil.Process]:
    """The replicas of a Ray Serve that this process has started."""
    return [each for each in driver.children(recursive=True) if _title(each).startswith("ray::ServeReplica")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
