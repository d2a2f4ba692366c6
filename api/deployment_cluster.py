"""The Ray that the application is deployed on: which one, whether it has room, and what it says of a failure."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import ray
from ray import serve

from api.cluster_room import empty_shards, places, shard_memory, shortage
from api.deployment_options import nodes
from api.deployment_replica import APP_NAME
from api.errors import DeployError
from api.local import listening
from api.settings import ServeSettings
from index.collection import Collection
from index.versions import live_manifest

_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")
_HERE: Final = "local"

# For a cluster of this machine alone; they hold for all that it starts.
_RAY_DEFAULTS: Final = {
    # Ray's workers yield to every other process (nice 15) unless told otherwise: somebody waits for these.
    "RAY_worker_niceness": "0",
    # Of Ray's RAY_SERVE_THROUGHPUT_OPTIMIZED what suits an app that never blocks its event loop: each request costs
    # Serve less. Routers keep a loop of their own, which waiting for `embedders` from a thread needs.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}

logger = logging.getLogger(__name__)


def connect(host: str, port: int) -> bool:
    """Join the cluster of RAY_ADDRESS, or start one of this machine; whether it was joined, or Ray is there already.

    SIGTERM does afterwards what it did before: Ray's own handler exits with 15. Raises ListenError, DeployError.
    """
    if ray.is_initialized():
        return True
    # Without an address Ray joins what /tmp/ray names, the cluster of somebody else on this machine say.
    address = os.environ.get("RAY_ADDRESS") or _HERE
    if address == _HERE:
        # Serve's proxies share a port with whoever else listens there (SO_REUSEPORT), another Likeness say.
        with listening(host, port):
            pass
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    for name, value in _RAY_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        with _sigterm_kept():
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises nothing narrower when its processes are late, for which it allows 30 s
        ray.shutdown()
        raise DeployError(
            f"Ray could not be had at {address!r} ({error}): run the same command again if this machine was busy, "
            "check RAY_ADDRESS, or serve without Ray with --local"
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
        if callable(handler):  # without one, Ray's at least ends what it started
            signal.signal(signal.SIGTERM, handler)


def require_room(settings: ServeSettings, *, joined: bool) -> None:
    """Raises DeployError for replicas that Serve would wait for for ever; a cluster that was `joined` may grow."""
    live = live_manifest(Collection.open(settings.collection))
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


def failure() -> str | None:
    """What the replica's constructor raised: the last line of the traceback that Serve keeps."""
    application = serve.status().applications.get(APP_NAME)
    deployments = list(application.deployments.values()) if application else []
    # Those that wait for the one that failed have something to say as well.
    deployments.sort(key=lambda deployment: deployment.status not in _FAILED)
    messages = [deployment.message.strip() for deployment in deployments]
    return next((message.splitlines()[-1] for message in messages if message), None)
