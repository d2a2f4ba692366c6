"""Options of Ray Serve for each deployment: the resources of a replica, and the number of replicas."""

import hashlib
from typing import Any, Final

import ray
from ray import serve

from api.deployment.capacity import places
from api.deployment.searcher import SearcherReplica
from api.replicas import Replicas
from api.settings import ServeSettings
from embedder.openmp import WAITING
from index.storage.bucket import without_secrets

COMMON: Final[dict[str, Any]] = {
    # An error at start-up, such as a missing model, will occur again: the default would be 20 attempts.
    "max_constructor_retry_count": 2,
    # A dead replica is noticed within this time: the default, 10 s, is half of what starting another one takes.
    "health_check_period_s": 2,
    # `api.http.middleware.telemetry` writes a line for each request.
    "logging_config": {"enable_access_log": False},
}


def searcher(settings: ServeSettings, number: int, memory: int) -> serve.Application:
    """The searchers of one shard: each on a node of its own, if enough nodes have room for one.

    Their name contains the collection and the number of shards: Serve replaces replicas of one name one by one, so
    while either setting is changed, old callers would query searchers that already hold something else.
    """
    collection = hashlib.sha256(without_secrets(settings.collection).encode()).hexdigest()[:8]
    apart: dict[str, Any] = {}
    if 1 < settings.searchers.most <= places(settings, nodes(), memory):
        apart["max_replicas_per_node"] = 1  # so that the loss of one node does not lose all of them
    searching = serve.deployment(
        name=f"Searcher-{number}-of-{settings.shards}-{collection}",
        ray_actor_options={**resources(settings, model=False), "memory": memory},
        # Each replica that answers HTTP sends all of its admitted searches at once.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        graceful_shutdown_timeout_s=settings.request_timeout_s,
        **apart,
        **scale(settings.searchers, settings.target_ongoing_requests),
        **COMMON,
    )
    return searching(SearcherReplica).bind(settings, number)


def nodes() -> list[dict[str, float]]:
    """The resources of each node, as Ray counts them; empty before there is a cluster."""
    if not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def resources(settings: ServeSettings, *, model: bool) -> dict[str, Any]:
    """What Ray reserves for a replica, and its environment; `model`: whether it holds the model."""
    return {
        "num_cpus": settings.num_cpus,
        "num_gpus": settings.num_gpus if model else 0,
        # Replicas in a cluster that was already running do not have the environment that the command line sets.
        "runtime_env": {"env_vars": WAITING, **_shipped_code()},
    }


def _shipped_code() -> dict[str, Any]:
    """The code that the driver brought to the cluster: Serve leaves it out for replicas with a runtime_env."""
    ours = ray.get_runtime_context().runtime_env if ray.is_initialized() else {}
    return {"py_modules": list(ours["py_modules"])} if "py_modules" in ours else {}


def scale(replicas: Replicas, target_ongoing_requests: float) -> dict[str, Any]:
    """The number of replicas: fixed, or following the load."""
    if replicas.least == replicas.most:
        return {"num_replicas": replicas.least}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            "target_ongoing_requests": target_ongoing_requests,
        }
    }
