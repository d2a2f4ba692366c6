"""The Ray cluster of the application: whether it has room, and why a deployment failed."""

import logging
import socket
import threading
from typing import Final

import ray
from ray import serve
from ray.serve.context import _get_global_client

from api.deployment.capacity import empty_shards, nodes_with_room, shard_memory, sharded_version, shortage
from api.deployment.ingress import APP_NAME
from api.errors import DeployError, ListenError
from api.settings import ServeSettings

_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")

logger = logging.getLogger(__name__)


def require_address(host: str, port: int) -> None:
    """Raises ListenError if Serve was running already on another address, which it keeps."""
    client = _get_global_client()
    assert client is not None  # Serve runs by now
    options = client.http_config
    if (options.host, options.port) != (host, port):
        raise ListenError(
            f"expected to listen on {host}:{port}, but Ray Serve already listens on {options.host}:{options.port} on "
            f"this cluster: use --host {options.host} --port {options.port}, or stop it first with `serve shutdown`"
        )


def require_room(settings: ServeSettings, *, joined: bool) -> None:
    """Raises DeployError if Serve would wait for ever for room; only warns if the cluster was `joined`: it may grow."""
    live = sharded_version(settings)
    if live is not None and (warning := empty_shards(settings, live)):
        logger.warning("%s", warning)
    memory = shard_memory(settings, live)
    available = nodes()
    if joined and memory and 1 < settings.searchers.maximum > nodes_with_room(settings, available, max(memory)):
        logger.warning(
            "some searchers of one shard share a node: losing that node loses them all; redeploy when more nodes are up"
        )
    missing = shortage(settings, available, memory)
    if missing is None:
        return
    if not joined:
        raise DeployError(missing)
    logger.warning("%s. Waiting for the cluster to grow", missing)


def nodes() -> list[dict[str, float]]:
    """The resources of each node, as Ray counts them; empty if Ray is not running."""
    if not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def delete_application() -> None:
    """Delete the application, unless Ray's processes have ended: then Serve would wait a minute for them. A signal to
    the whole process group ends them too.
    """
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    deleting = threading.Thread(target=serve.delete, args=(APP_NAME,), daemon=True)
    deleting.start()
    while deleting.is_alive():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except OSError:
            return
        deleting.join(0.5)


def deployment_failure() -> str | None:
    """The exception of a replica's constructor: the last line of the traceback in Serve's status."""
    application = serve.status().applications.get(APP_NAME)
    deployments = list(application.deployments.values()) if application else []
    # Deployments that wait for the failed one have messages too.
    deployments.sort(key=lambda deployment: deployment.status not in _FAILED)
    messages = [deployment.message.strip() for deployment in deployments]
    return next((message.splitlines()[-1] for message in messages if message), None)
