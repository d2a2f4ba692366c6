"""Ray's multi-node test cluster, and the comparison of its rows with those of one machine."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster

from index.collection import Collection
from tests.support import fake_embedder

cloudpickle.register_pickle_by_value(fake_embedder)  # type: ignore[no-untyped-call]  # nodes have no tests

CLUSTER_MARKS = [
    pytest.mark.ray,
    pytest.mark.timeout(1800),
    # A node that is killed leaves the handles of its processes to the garbage collector.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "memory": 5 * 2**30}
HEAD: dict[str, Any] = {
    **NODE,
    "include_dashboard": False,
    "_system_config": {"metrics_report_interval_ms": 500},  # 10 s by default
}
NPU: dict[str, Any] = {"resources": {"npu": 1}}


class Nodes:
    """A cluster of a head and of nodes with one device each."""

    def __init__(self, devices: int) -> None:
        os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")  # a busy machine takes longer than Ray allows
        self._cluster = Cluster()
        self._add(**HEAD)
        self.address = self._cluster.address
        self.with_device = [self._add(**NODE, **NPU) for _ in range(devices)]

    @property
    def ids(self) -> set[str]:
        """The ids of the nodes with a device."""
        return {node.node_id for node in self.with_device}

    def add(self) -> None:
        self.with_device.append(self._add(**NODE, **NPU))

    def _add(self, **node: Any) -> Any:
        """Add a node. Ray allows it 30 s to start, which may be too short on a busy machine."""
        for _ in range(4):
            with suppress(Exception):
                return self._cluster.add_node(**node)
        return self._cluster.add_node(**node)

    def kill(self) -> None:
        """End a node with a device as a power cut does."""
        self._cluster.remove_node(self.with_device.pop(0), allow_graceful=False)

    def shutdown(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


def live(collection: Collection) -> pa.Table:
    return collection.live_rows().sort_by("image_id")


def assert_rows_are_the_same(found: pa.Table, expected: pa.Table) -> None:
    for column in ("image_id", "content_hash", "size", "width", "height", "error_reason", "label"):
        assert found[column].to_pylist() == expected[column].to_pylist(), column
    assert found["embedding"].is_null().to_pylist() == expected["embedding"].is_null().to_pylist()
    mine, other = (np.array(table["embedding"].drop_null().to_pylist()) for table in (found, expected))
    np.testing.assert_allclose(mine, other, atol=1e-2)  # in bf16 or int8, as is fastest
