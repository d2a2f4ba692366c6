"""A cluster with Ray's autoscaler on this machine: it begins with a head, and adds nodes that are processes.

`ray.cluster_utils.AutoscalingCluster` would be the same, but ends every Ray of the machine when it starts and ends, and
the wheel lacks the file that it reads.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
    FakeMultiNodeProvider,
)

from benchmarks.common.servers import free_port
from tests.support.paths import ROOT

STORE = 100 * 2**20


class Provider(FakeMultiNodeProvider):
    """Starts nodes as processes of the autoscaler's. Ray's own takes no memory, which its nodes then find out."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: Any, resources: dict[str, float], labels: Any
    ) -> None:
        without = {name: amount for name, amount in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, without, labels)  # type: ignore[no-untyped-call]


@contextmanager
def growing_cluster(folder: Path, nodes: dict[str, dict[str, float]], *, most: int, version: int) -> Iterator[str]:
    """The address of a cluster whose head runs no tasks. It may add `most` nodes of each kind.

    `nodes` are the resources of each kind; `version` is the autoscaler's, 1 or 2. Files go to the folder.
    """
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"  # type: ignore[no-untyped-call]
    config = folder / "cluster.json"
    config.write_text(json.dumps(_config(address, nodes, most=most, version=version)))
    port = address.rpartition(":")[2]
    options = [f"--port={port}", "--num-cpus=0", f"--object-store-memory={STORE}", f"--autoscaling-config={config}"]
    variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "PYTHONUNBUFFERED": "1"}
    variables |= {"PYTHONPATH": str(ROOT), "RAY_agent_register_timeout_ms": "120000"}
    if version == 2:
        variables |= {"RAY_enable_autoscaler_v2": "1"}
        variables |= dict.fromkeys(("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"), FAKE_HEAD_NODE_ID)
    head = _started(options, {**os.environ, **variables}, folder / "head.log")
    try:
        yield address
    finally:
        ray.shutdown()
        _end(head)


def _started(options: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """A head, once it runs. A busy machine may not have the time for it the first time that Ray allows it."""
    command = [
        str(Path(sys.executable).parent / "ray"),
        "start",
        "--head",
        "--block",
        "--include-dashboard=false",
        *options,
    ]
    for _ in range(5):
        with log.open("wb") as output:
            head = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while head.poll() is None and time.monotonic() < deadline:
            if "Ray runtime started" in log.read_text():
                return head
            time.sleep(0.2)
        _end(head)
    raise RuntimeError(f"expected `ray start` to start a head; its log is {log}")


def _end(head: "subprocess.Popen[bytes]") -> None:
    """End a head with all that it started: the nodes that were added are among them."""
    started = [] if head.poll() is not None else psutil.Process(head.pid).children(recursive=True)
    head.kill()
    head.wait()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _config(address: str, nodes: dict[str, dict[str, float]], *, most: int, version: int) -> dict[str, Any]:
    """What the autoscaler reads. To it the provider is external: of its own ones it reads defaults."""
    provider = {"type": "external", "module": f"{__name__}.{Provider.__name__}"}
    switches = ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check")
    kinds = {
        name: {"resources": {**amounts, "object_store_memory": STORE}, "node_config": {}, "max_workers": most}
        for name, amounts in nodes.items()
    }
    kinds[FAKE_HEAD_NODE_TYPE] = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    commands = ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "growing",
        "max_workers": most * len(nodes),
        "idle_timeout_minutes": 1,
        "upscaling_speed": 1.0,
        "provider": {
            **provider,
            **dict.fromkeys(switches, True),
            "gcs_address": address,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": version == 2,
        },
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "available_node_types": kinds,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{f"{name}_commands": [] for name in commands},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
    }
