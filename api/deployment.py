"""Runs the app on Ray Serve. Only this module, `api.deployment_embedder` and `api.deployment_searcher` import Ray."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from fastapi import FastAPI
from prometheus_client import Metric
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app import create_app
from api.cluster_room import empty_shards, shard_memory, shortage
from api.compose import LoadModel, build_service, collecting_later, model_loader
from api.deployment_embedder import EmbedderReplica, RemoteEmbedder
from api.deployment_searcher import SearcherReplica, Searchers
from api.errors import DeployError, ListenError
from api.local import listening
from api.logs import configure_logs
from api.metrics import Metrics
from api.replica_metrics import merged
from api.replicas import Replicas
from api.settings import ServeSettings
from api.telemetry import REQUEST_ID
from embedder.protocol import Embedder
from index.collection import Collection
from index.errors import EmptyCollectionError
from index.records import ModelRecord
from index.search import Searcher
from index.versions import live_manifest

APP_NAME: Final = "likeness"
_DEPLOYMENT: Final = "Likeness"
_METRICS_TIMEOUT_S: Final = 5.0
_FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")
_COMMON: Final[dict[str, Any]] = {
    # What fails once at start-up, such as a missing model, fails again: the default is 20 attempts.
    "max_constructor_retry_count": 2,
    # One that has died is missed within so long: the default, 10 s, is half of what starting another takes.
    "health_check_period_s": 2,
    # `api.telemetry` writes a line for each request.
    "logging_config": {"enable_access_log": False},
}

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
        name=_DEPLOYMENT,
        ray_actor_options=_resources(settings, model=settings.embedders is None),
        # The app itself refuses what is too much, with a problem document: as many again may come to be refused.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        max_queued_requests=settings.max_queued_requests,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=settings.request_timeout_s,
        **_scale(settings.replicas, settings.target_ongoing_requests),
        **_COMMON,
    )
    load_model = partial(_load_here, settings, models, first)
    embedder = None
    if settings.embedders is not None:
        embedding = serve.deployment(
            name="Embedder",
            ray_actor_options=_resources(settings, model=True),
            # Those that wait are embedded together: enough for a batch under way and one that gathers.
            max_ongoing_requests=64,
            graceful_shutdown_timeout_s=settings.request_timeout_s,
            **_scale(settings.embedders, settings.target_ongoing_embeddings),
            **_COMMON,
        )
        embedder = embedding(EmbedderReplica).bind(settings, load_model)
    searchers = [_searcher(settings, number, memory) for number, memory in enumerate(shard_memory(settings, live))]
    return deployment(serve.ingress()(_Replica)).bind(settings, load_model, embedder, searchers)


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
    joined = ray.is_initialized() or "RAY_ADDRESS" in os.environ
    if not ray.is_initialized():
        if not joined:
            # Serve's proxies share a port with whoever else listens there (SO_REUSEPORT), another Likeness say.
            with listening(host, port):
                pass
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        for name, value in _RAY_DEFAULTS.items():
            os.environ.setdefault(name, value)
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    _require_room(settings, joined=joined)
    try:
        # The app's own time limit comes first.
        timeout_s = settings.request_timeout_s + 5
        serve.start(http_options={"host": host, "port": port, "request_timeout_s": timeout_s})
        serve.run(serve_app(settings, models=models), name=APP_NAME, route_prefix="/")
    except RuntimeError as error:
        raise DeployError(
            f"Ray Serve could not start the application: {_cause() or str(error).splitlines()[-1]}"
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


class _Replica:
    """Builds the app where it runs: a loaded model must not travel."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        settings: ServeSettings,
        load_model: LoadModel,
        embedder: DeploymentHandle[Any] | None,
        searchers: Sequence[DeploymentHandle[Any]],
    ) -> None:
        configure_logs(settings.log_format)
        self._metrics = Metrics(self._gather)
        if embedder is not None:
            load_model = partial(RemoteEmbedder.connect, embedder, timeout_s=settings.embedder_timeout_s)
        open_version = Searchers(searchers, settings.searcher_timeout_s).open if searchers else Searcher.open
        # In a thread: handles wait for answers, which the event loop's own thread must not.
        with collecting_later():
            service = await asyncio.to_thread(build_service, settings, load_model=load_model, open_version=open_version)
        self._app = create_app(service, limits=settings.limits(), access=settings.access(), metrics=self._metrics)
        self._app.add_middleware(_ProxyTellsRequestIds)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def metrics(self) -> tuple[str, list[Metric]]:
        """This replica's name and what it has counted."""
        return serve.get_replica_context().replica_id.unique_id, self._metrics.collect()

    async def _gather(self) -> list[Metric]:
        try:
            replicas = serve.get_deployment_handle(_DEPLOYMENT, APP_NAME).broadcast("metrics")
            answers = await replicas.results_async(timeout_s=_METRICS_TIMEOUT_S, return_exceptions=True)
        except Exception:
            logger.warning("the metrics of the other replicas cannot be had", exc_info=True)
            answers = [await self.metrics()]
        return merged(dict(answer for answer in answers if not isinstance(answer, BaseException)))


def _load_here(settings: ServeSettings, models: Models, first: ModelRecord | None, record: ModelRecord) -> Embedder:
    """Load a model into this replica."""
    # Ray gives OpenMP as many threads as it reserves CPUs, one by default: a replica that is alone would leave cores
    # idle.
    threads = settings.threads or settings.cores(settings.embedders or settings.replicas)
    return models(settings.model_copy(update={"threads": threads}), first)(record)


def _require_room(settings: ServeSettings, *, joined: bool) -> None:
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


def _searcher(settings: ServeSettings, number: int, memory: int) -> serve.Application:
    """The searchers of one shard."""
    searching = serve.deployment(
        name=f"Searcher-{number}",
        ray_actor_options={**_resources(settings, model=False), "memory": memory},
        # Each replica that answers HTTP asks for all that it lets in, at once.
        max_ongoing_requests=2 * settings.ongoing_requests(),
        graceful_shutdown_timeout_s=settings.request_timeout_s,
        **_scale(settings.searchers, settings.target_ongoing_requests),
        **_COMMON,
    )
    return searching(SearcherReplica).bind(settings, number)


def _resources(settings: ServeSettings, *, model: bool) -> dict[str, Any]:
    return {
        "num_cpus": settings.num_cpus,
        "num_gpus": settings.num_gpus if model else 0,
        # Replicas in a cluster that runs already do not have the environment that the command line sets.
        "runtime_env": {"env_vars": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "30000"}, **_shipped_code()},
    }


def _shipped_code() -> dict[str, Any]:
    """The code that whoever joined a cluster brought along: Serve leaves it out for replicas with a runtime_env."""
    ours = ray.get_runtime_context().runtime_env if ray.is_initialized() else {}
    return {"py_modules": list(ours["py_modules"])} if "py_modules" in ours else {}


def _scale(replicas: Replicas, target_ongoing_requests: float) -> dict[str, Any]:
    if replicas.least == replicas.most:
        return {"num_replicas": replicas.least}
    return {
        "autoscaling_config": {
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            "target_ongoing_requests": target_ongoing_requests,
        }
    }


class _ProxyTellsRequestIds:
    """Leaves the header to Serve's proxy, which gives each request an id, if it has none, and adds it to the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)[REQUEST_ID]
            await send(message)

        await self._app(scope, receive, sending)


def _absolute(settings: ServeSettings) -> ServeSettings:
    """The same settings with paths that also hold in a replica, whose working directory may be another."""
    # Opened here as well: a mistyped collection is said at once, and not after a cluster has been started.
    collection = Collection.open(settings.collection)
    if not collection.versions():
        raise EmptyCollectionError(f"{collection.location} has no index to search: build one with `likeness index`")
    model = settings.model
    if model is not None and Path(model).is_dir():
        model = str(Path(model).resolve())
    keys_file = settings.keys_file and str(Path(settings.keys_file).resolve())
    return settings.model_copy(update={"collection": collection.location, "model": model, "keys_file": keys_file})


def _cause() -> str | None:
    """What the replica's constructor raised: the last line of the traceback that Serve keeps."""
    application = serve.status().applications.get(APP_NAME)
    deployments = list(application.deployments.values()) if application else []
    # Those that wait for the one that failed have something to say as well.
    deployments.sort(key=lambda deployment: deployment.status not in _FAILED)
    messages = [deployment.message.strip() for deployment in deployments]
    return next((message.splitlines()[-1] for message in messages if message), None)
