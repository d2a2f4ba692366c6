"""The Ray cluster of the application: whether it has room, and why a deployment failed."""

import logging
from typing import Final

import ray
from ray import serve
from ray.serve.context import _get_global_client

from api.deployment.capacity import empty_shards, places, shard_memory, sharded_version, shortage
from api.deployment.ingress import APP_NAME
from api.errors import DeployError, ListenError
from api.settings import ServeSettings

_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")

logger = logging.getLogger(__name__)


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
    if joined and memory and 1 < settings.searchers.maximum > places(settings, there, max(memory)):
        logger.warning(
            "some searchers of one shard share a node: losing that node loses them all; redeploy when more nodes are up"
        )
    missing = shortage(settings, there, memory)
    if missing is None:
        return
    if not joined:
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
