"""The Ray that the application is deployed on: whether it has room, and what it says of a failure."""

import logging
from typing import Final

import ray
from ray import serve

from api.cluster_room import empty_shards, shard_memory, shortage
from api.deployment_replica import APP_NAME
from api.errors import DeployError
from api.settings import ServeSettings
from index.collection import Collection
from index.versions import live_manifest

_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")

# For a cluster of this machine alone; they hold for all that it starts.
RAY_DEFAULTS: Final = {
    # Ray's workers yield to every other process (nice 15) unless told otherwise: somebody waits for these.
    "RAY_worker_niceness": "0",
    # Of Ray's RAY_SERVE_THROUGHPUT_OPTIMIZED what suits an app that never blocks its event loop: each request costs
    # Serve less. Routers keep a loop of their own, which waiting for `embedders` from a thread needs.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}

logger = logging.getLogger(__name__)


def require_room(settings: ServeSettings, *, joined: bool) -> None:
    """Raises DeployError for replicas that Serve would wait for for ever; a cluster that was `joined` may grow."""
    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    live = live_manifest(Collection.open(settings.collection))
    if live is not None and (warning := empty_shards(settings, live)):
        logger.warning("%s", warning)
    memory = shard_memory(settings, live)
    missing = shortage(settings, resources, memory)
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
