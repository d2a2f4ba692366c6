"""Runs the app on Ray Serve: its deployments, their resources, and the number of their replicas."""

import hashlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve

from api.build_service import first_model, model_loader, served_collections
from api.deployment.capacity import nodes_with_room, shard_memory, sharded_version
from api.deployment.cluster import delete_application, deployment_failure, nodes, require_address, require_room
from api.deployment.embedder import EmbedderReplica
from api.deployment.ingress import APP_NAME, DEPLOYMENT, IngressReplica
from api.deployment.searcher import SearcherReplica
from api.errors import DeployError, ListenError
from api.search.engine import LoadModel
from api.settings import Replicas, ServeSettings, server_url
from embedder.openmp import OPENMP_ENVIRONMENT
from embedder.protocol import Embedder
from embedder.python_class import append_to_path
from index.collection.records.model_record import ModelRecord
from index.search.searcher import no_index
from index.storage.bucket_address import without_secrets

_COMMON: Final[dict[str, Any]] = {
    # An error at start-up, such as a missing model, would recur; the default is 20 attempts.
    "max_constructor_retry_count": 2,
    # A dead replica is noticed within this time. The default, 10 s, is half the time that starting another one takes.
    "health_check_period_s": 2,
    # `api.http.middleware.every_request` logs the requests.
    "logging_config": {"enable_access_log": False},
}


def serve_app(settings: ServeSettings, *, load_model: LoadModel | None = None) -> serve.Application:
    """The Serve application of `settings`: replicas that answer HTTP and hold the index and the model. With `embedders`
    the model has its own replicas, with `shards` the index has.

    `load_model` is called in the replica, so it must be picklable. Raises CollectionError.
    """
    first = first_model(served_collections(settings))
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options=_resources(settings, model=settings.embedders is None),
        # The app itself refuses requests beyond its limit, with a problem document, so more of them may reach it.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        max_queued_requests=settings.max_queued_requests,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        **_common(settings, settings.replicas, settings.target_ongoing_requests),
    )
    load_model = load_model or partial(_load_in_replica, settings, first, str(Path.cwd()))
    embedder = None
    if settings.embedders is not None:
        embedding = serve.deployment(
            name="Embedder",
            ray_actor_options=_resources(settings, model=True),
            # Waiting items are embedded together; this is enough for one batch in progress and the next one.
            max_ongoing_requests=64,
            **_common(settings, settings.embedders, settings.target_ongoing_embeddings),
        )
        embedder = embedding(EmbedderReplica).bind(settings, load_model)
    searchers = [
        shard_application(settings, number, memory)
        for number, memory in enumerate(shard_memory(settings, sharded_version(settings)))
    ]
    return deployment(serve.ingress()(IngressReplica)).bind(settings, load_model, embedder, searchers)


def application(args: dict[str, Any]) -> serve.Application:
    """The builder that `import_path` names in a Serve config file, such as KubeRay's serveConfigV2.

    `args` are fields of ServeSettings; missing ones come from the environment of the container. The address that Serve
    listens on is not known here and assumed to be beyond this machine, so without a file of keys `allow_remote` must be
    true. The application's name in the file must be "likeness". If the cluster lacks resources, this only logs a
    warning, as it may still be starting. Raises ValidationError, ListenError, KeysError, CollectionError.
    """
    settings = ServeSettings(**{"host": "0.0.0.0", **args})
    settings.listen_address()
    settings = _absolute(settings)
    settings.access()  # raises KeysError here, before a replica starts
    require_room(settings, joined=True)
    return serve_app(settings)


def run(
    settings: ServeSettings,
    *,
    blocking: bool = True,
    load_model: LoadModel | None = None,
    connect: Callable[[], bool] = ray.is_initialized,
    on_listening: Callable[[str], None] | None = None,
) -> str:
    """Deploy on the Ray cluster that this process is connected to; returns the server's URL.

    `connect` is called once the settings are checked: it connects to a cluster and returns whether that ran before.
    With `blocking`, serves until interrupted and then deletes the application; `on_listening` gets the URL once queries
    can be answered. If Serve already runs on the cluster, it must listen on the address of the settings.
    Raises ListenError, KeysError, CollectionError, DeployError.
    """
    host, port = settings.listen_address()
    if port == 0:
        raise ListenError("expected a port from 1 to 65535 for Ray Serve, got 0; only --local can pick a free one")
    settings = _absolute(settings)
    settings.access()  # raises KeysError before anything starts
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    require_room(settings, joined=connect())
    try:
        # The app's own time limit comes first.
        timeout_s = settings.request_timeout_s + 5
        serve.start(http_options={"host": host, "port": port, "request_timeout_s": timeout_s})
        require_address(host, port)
        serve.run(serve_app(settings, load_model=load_model), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        why = deployment_failure() or str(error).splitlines()[-1]
        raise DeployError(f"Ray Serve could not start the application: {why}") from error
    url = server_url(host, port)
    if on_listening is not None:
        on_listening(url)
    if blocking:
        try:
            threading.Event().wait()
        finally:
            delete_application()
    return url


def _load_in_replica(settings: ServeSettings, first: ModelRecord | None, folder: str, record: ModelRecord) -> Embedder:
    append_to_path(folder)  # a replica may have another working directory
    # Ray gives OpenMP one thread per reserved CPU, by default one, so a single replica would leave cores idle.
    threads = settings.threads or settings.cores(settings.embedders or settings.replicas)
    return model_loader(settings.model_copy(update={"threads": threads}), first)(record)


def _absolute(settings: ServeSettings) -> ServeSettings:
    """The same settings with absolute paths, as a replica may have another working directory."""
    # Opened here too, so that a mistyped location is reported before a cluster is started.
    collections = served_collections(settings)
    for collection in collections.values():
        if len(collections) == 1 and not collection.versions():
            raise no_index(collection)
    model = settings.model
    if model is not None and Path(model).is_dir():
        model = str(Path(model).resolve())
    # Addresses, not locations, which omit the credentials that replicas need.
    first, *others = (
        collection.storage.address if name == collection.name else f"{name}={collection.storage.address}"
        for name, collection in collections.items()
    )
    return settings.model_copy(update={"collection": first, "more_collections": tuple(others), "model": model})


def shard_application(settings: ServeSettings, number: int, memory: int) -> serve.Application:
    """The searchers of one shard, each on a node of its own if enough nodes have room for one.

    Their name contains the collection and the number of shards. Serve replaces replicas of the same name one by one, so
    after a change of these settings old callers would query searchers that already hold something else.
    """
    collection = hashlib.sha256(without_secrets(settings.collection).encode()).hexdigest()[:8]
    spread: dict[str, Any] = {}
    if 1 < settings.searchers.maximum <= nodes_with_room(settings, nodes(), memory):
        spread["max_replicas_per_node"] = 1  # so that the loss of one node does not lose all of them
    searching = serve.deployment(
        name=f"Searcher-{number}-of-{settings.shards}-{collection}",
        ray_actor_options={**_resources(settings, model=False), "memory": memory},
        # Each replica that answers HTTP sends all its admitted searches at once.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        **spread,
        **_common(settings, settings.searchers, settings.target_ongoing_requests),
    )
    return searching(SearcherReplica).bind(settings, number)


def _resources(settings: ServeSettings, *, model: bool) -> dict[str, Any]:
    """The resources that Ray reserves for a replica, and its environment. `model`: whether it holds the model."""
    # Replicas on a cluster that was already running lack the environment variables that the command line sets.
    # As many threads as Ray gives to each, which it does not if the command line has said how many a container has.
    threads = {"OMP_NUM_THREADS": str(max(1, int(settings.num_cpus)))}
    environment: dict[str, Any] = {"env_vars": {**OPENMP_ENVIRONMENT, **threads}}
    driver = ray.get_runtime_context().runtime_env if ray.is_initialized() else {}
    if "py_modules" in driver:  # the driver's code, which Serve leaves out for replicas with a runtime_env
        environment["py_modules"] = list(driver["py_modules"])
    gpus = settings.num_gpus if model else 0
    return {"num_cpus": settings.num_cpus, "num_gpus": gpus, "runtime_env": environment}


def _common(settings: ServeSettings, replicas: Replicas, target_ongoing_requests: float) -> dict[str, Any]:
    """The options of every deployment, and the number of its replicas: fixed, or depending on the load."""
    common = {**_COMMON, "graceful_shutdown_timeout_s": settings.request_timeout_s}
    if replicas.minimum == replicas.maximum:
        return {**common, "num_replicas": replicas.minimum}
    scale = {"min_replicas": replicas.minimum, "max_replicas": replicas.maximum}
    return {**common, "autoscaling_config": {**scale, "target_ongoing_requests": target_ongoing_requests}}
