"""The replica that answers HTTP on Ray Serve: it holds the app."""

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import Metric
from ray import serve
from ray.serve.handle import DeploymentHandle

from api.build_service import build_collections
from api.deployment.embedder import RemoteEmbedder
from api.deployment.searcher import open_sharded
from api.errors import ListenError
from api.http.app import create_app
from api.observe.log import configure_logs
from api.observe.metrics import Metrics, merge_replicas
from api.search.engine import LoadModel
from api.settings import ServeSettings
from index.search import Searcher

APP_NAME: Final = "likeness"
DEPLOYMENT: Final = "Likeness"
_METRICS_TIMEOUT_S: Final = 5.0

logger = logging.getLogger(__name__)


class IngressReplica:
    """Builds the app in the replica, because a loaded model cannot be sent there."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        settings: ServeSettings,
        load_model: LoadModel,
        embedder: DeploymentHandle[Any] | None,
        searchers: Sequence[DeploymentHandle[Any]],
    ) -> None:
        configure_logs(settings.log_format)
        # Checked here, because the variable is the cluster's, which may have been started elsewhere.
        if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and settings.needs_caller_addresses:
            raise ListenError(
                "expected keys, or a loopback host, on a Ray cluster with RAY_SERVE_ENABLE_HA_PROXY=1: HAProxy hides "
                "the callers' addresses. Set LIKENESS_KEYS_FILE, or start the cluster without HAProxy"
            )
        self._metrics = Metrics(self._gather)
        if embedder is not None:
            load_model = partial(RemoteEmbedder.connect, embedder, timeout_s=settings.embedder_timeout_s)
        # By gRPC: that costs half the CPU of calls that pass Ray's object store.
        shards = [handle.options(_by_reference=False) for handle in searchers]
        open_version = partial(open_sharded, shards, settings.searcher_timeout_s) if shards else Searcher.open
        # In a thread, because handles block while they wait for answers.
        collections = await asyncio.to_thread(
            build_collections, settings, load_model=load_model, open_version=open_version
        )
        self._app = create_app(
            collections,
            limits=settings.limits(),
            access=settings.access(),
            metrics=self._metrics,
            send_request_ids=False,  # Serve's proxy does
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def metrics(self) -> tuple[str, list[Metric]]:
        return serve.get_replica_context().replica_id.unique_id, self._metrics.collect()

    async def _gather(self) -> list[Metric]:
        try:
            replicas = serve.get_deployment_handle(DEPLOYMENT, APP_NAME).broadcast("metrics")
            answers = await replicas.results_async(timeout_s=_METRICS_TIMEOUT_S, return_exceptions=True)
        except Exception:
            logger.warning("cannot collect the other replicas' metrics", exc_info=True)
            answers = [await self.metrics()]
        return merge_replicas(dict(answer for answer in answers if not isinstance(answer, BaseException)))
