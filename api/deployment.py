"""Runs the app on Ray Serve. In api only this module and `api.deployment_*` import Ray."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ray import serve

from api.cluster_room import shard_memory
from api.compose import LoadModel, model_loader
from api.deployment_cluster import connect, failure, require_room
from api.deployment_embedder import EmbedderReplica
from api.deployment_options import COMMON, resources, scale, searcher
from api.deployment_replica import APP_NAME, DEPLOYMENT, IngressReplica
from api.errors import DeployError, ListenError
from api.settings import ServeSettings
from embedder.protocol import Embedder
from index.collection import Collection
from index.records import ModelRecord
from index.search import no_index
from index.versions import live_manifest

Models = Callable[[ServeSettings, ModelRecord | None], LoadModel]


def serve_app(settings: ServeSettings, *, models: Models = model_loader) -> serve.Application:
    """The Serve application of `settings`: replicas that hold the index, answer HTTP, and hold the model as well; or
    with `embedders` have it in replicas of its own, and with `shards` the index.

    `models` makes what loads models from settings and the record of the model of the live index, in the replica: it
    must pickle. Raises CollectionError.
    """
    live = live_manifest(Collection.open(settings.collection))
    first = None if live is None else live.model
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options=resources(settings, model=settings.embedders is None),
        # The app itself refuses what is too much, with a problem document: as many again may come to be refused.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        max_queued_requests=settings.max_queued_requests,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=settings.request_timeout_s,
        **scale(settings.replicas, settings.target_ongoing_requests),
        **COMMON,
    )
    load_model = partial(_load_here, settings, models, first)
    embedder = None
    if settings.embedders is not None:
        embedding = serve.deployment(
            name="Embedder",
            ray_actor_options=resources(settings, model=True),
            # Those that wait are embedded together: enough for a batch under way and one that gathers.
            max_ongoing_requests=64,
            graceful_shutdown_timeout_s=settings.request_timeout_s,
            **scale(settings.embedders, settings.target_ongoing_embeddings),
            **COMMON,
        )
        embedder = embedding(EmbedderReplica).bind(settings, load_model)
    searchers = [searcher(settings, number, memory) for number, memory in enumerate(shard_memory(settings, live))]
    return deployment(serve.ingress()(IngressReplica)).bind(settings, load_model, embedder, searchers)


def application(args: dict[str, Any]) -> serve.Application:
    """What `import_path: api.deployment:application` names in a Serve config file, such as KubeRay's serveConfigV2.

    `args` are fields of ServeSettings; what is left out comes from the environment of the container. Where Serve
    listens is not known here, so it is as beyond this machine: without a file of keys `allow_remote` has to be true.
    The application's name in the file must be "likeness". Raises ValidationError, ListenError, KeysError,
    CollectionError.
    """
    settings = ServeSettings(**{"host": "0.0.0.0", **args})
    settings.listen_address()
    settings = _absolute(settings)
    settings.access()  # what is wrong with the keys is said here, before a replica starts
    return serve_app(settings)


def run(
    settings: ServeSettings,
    *,
    blocking: bool = True,
    models: Models = model_loader,
    on_listening: Callable[[str], None] | None = None,
) -> str:
    """Deploy on the Ray cluster of RAY_ADDRESS, or on one of this machine; gives the server's URL.

    With `blocking`, serves until interrupted and takes the application down again; `on_listening` gets the URL
    once queries can be answered. A Serve that already runs on the cluster keeps its own HTTP options.
    Raises ListenError, KeysError, CollectionError, DeployError.
    """
    host, port = settings.listen_address()
    if port == 0:
        raise ListenError("expected a port from 1 to 65535 for Ray Serve, got 0, which stands for any: name a free one")
    settings = _absolute(settings)
    settings.access()  # what is wrong with the keys is said at once as well
    joined = connect(host, port)
    require_room(settings, joined=joined)
    try:
        # The app's own time limit comes first.
        timeout_s = settings.request_timeout_s + 5
        serve.start(http_options={"host": host, "port": port, "request_timeout_s": timeout_s})
        serve.run(serve_app(settings, models=models), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise DeployError(
            f"Ray Serve could not start the application: {failure() or str(error).splitlines()[-1]}"
        ) from error
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if on_listening is not None:
        on_listening(url)
    if blocking:
        try:
            threading.Event().wait()
        finally:
            serve.delete(APP_NAME)
    return url


def _load_here(settings: ServeSettings, models: Models, first: ModelRecord | None, record: ModelRecord) -> Embedder:
    """Load a model into this replica."""
    # Ray gives OpenMP as many threads as it reserves CPUs, one by default: a replica that is alone would leave cores
    # idle.
    threads = settings.threads or settings.cores(settings.embedders or settings.replicas)
    return models(settings.model_copy(update={"threads": threads}), first)(record)


def _absolute(settings: ServeSettings) -> ServeSettings:
    """The same settings with paths that also hold in a replica, whose working directory may be another."""
    # Opened here as well: a mistyped collection is said at once, and not after a cluster has been started.
    collection = Collection.open(settings.collection)
    if not collection.versions():
        raise no_index(collection)
    model = settings.model
    if model is not None and Path(model).is_dir():
        model = str(Path(model).resolve())
    keys_file = settings.keys_file and str(Path(settings.keys_file).resolve())
    # Its address, not its location, which leaves out the credentials that replicas need as well.
    address = collection.storage.address
    return settings.model_copy(update={"collection": address, "model": model, "keys_file": keys_file})
