"""Runs the app on Ray Serve. The only module of the package that imports Ray."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import ray
from fastapi import FastAPI
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app import create_app
from api.compose import build_service
from api.errors import DeployError, ListenError
from api.local import listening
from api.logs import configure_logs
from api.service import SearchService
from api.settings import ServeSettings
from api.telemetry import REQUEST_ID
from index.collection import Collection
from index.errors import EmptyCollectionError

APP_NAME = "likeness"


def serve_app(
    settings: ServeSettings, *, compose: Callable[[ServeSettings], SearchService] = build_service
) -> serve.Application:
    """The Serve application of `settings`: one replica that holds the model and the index and answers HTTP.

    `compose` runs in the replica and must pickle.
    """

    # A function, and not an app: Serve pickles what it is given, and a loaded model must not travel.
    def build() -> FastAPI:
        configure_logs(settings.log_format)
        # Ray gives OpenMP as many threads as it reserves CPUs, one by default: the model would leave cores idle.
        placed = settings.model_copy(update={"threads": settings.threads or os.cpu_count()})
        app = create_app(compose(placed), limits=settings.limits(), access=settings.access())
        app.add_middleware(_ProxyTellsRequestIds)
        return app

    deployment = serve.deployment(
        name="Likeness",
        num_replicas=1,
        ray_actor_options={"num_cpus": settings.num_cpus, "num_gpus": settings.num_gpus},
        # The app itself refuses what is too much, with a problem document: as many again may come to be refused.
        max_ongoing_requests=2 * settings.max_ongoing_requests,
        max_queued_requests=settings.max_queued_requests,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        # What fails once at start-up, such as a missing model, fails again: the default is 20 attempts.
        max_constructor_retry_count=2,
        # `api.telemetry` writes a line for each request.
        logging_config={"enable_access_log": False},
    )
    return deployment(serve.ingress(build)()).bind()


def run(
    settings: ServeSettings,
    *,
    blocking: bool = True,
    compose: Callable[[ServeSettings], SearchService] = build_service,
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
    if not ray.is_initialized():
        if "RAY_ADDRESS" not in os.environ:
            # Serve's proxies share a port with whoever else listens there (SO_REUSEPORT), another Likeness say.
            with listening(host, port):
                pass
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        # The app's own time limit comes first.
        timeout_s = settings.request_timeout_s + 5
        serve.start(http_options={"host": host, "port": port, "request_timeout_s": timeout_s})
        serve.run(serve_app(settings, compose=compose), name=APP_NAME, route_prefix="/")
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
    messages = [deployment.message.strip() for deployment in application.deployments.values()] if application else []
    return next((message.splitlines()[-1] for message in messages if message), None)
