"""A cluster with Ray's autoscaler on this machine: it starts with a head, and adds processes as nodes.

`ray.cluster_utils.AutoscalingCluster` does the same, but stops every Ray on the machine when it starts and ends, and
the wheel lacks a file that it reads.
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
from tests.support.paths import python_path

STORE = 100 * 2**20


class Provider(FakeMultiNodeProvider):
    """Starts nodes as child processes of the autoscaler. Ray's own accepts no `memory`; its nodes detect it."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: Any, resources: dict[str, float], labels: Any
    ) -> None:
        without = {name: amount for name, amount in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, without, labels)  # type: ignore[no-untyped-call]


@contextmanager
def growing_cluster(folder: Path, nodes: dict[str, dict[str, float]], *, max_nodes: int, version: int) -> Iterator[str]:
    """Run a cluster during the block; yields its address. The head runs no tasks.

    `nodes` has the resources of each kind of node, of which up to `max_nodes` are added. `version` is the autoscaler's,
    1 or 2. Files are written to the folder.
    """
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"  # type: ignore[no-untyped-call]
    config = folder / "cluster.json"
    config.write_text(json.dumps(_config(address, nodes, max_nodes=max_nodes, version=version)))
    port = address.rpartition(":")[2]
    options = [f"--port={port}", "--num-cpus=0", f"--object-store-memory={STORE}", f"--autoscaling-config={config}"]
    variables = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "PYTHONUNBUFFERED": "1"}
    variables |= {"PYTHONPATH": python_path(), "RAY_agent_register_timeout_ms": "120000"}
    if version == 2:
        variables |= {"RAY_enable_autoscaler_v2": "1"}
        variables |= dict.fromkeys(("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"), FAKE_HEAD_NODE_ID)
    head = _start_head(options, {**os.environ, **variables}, folder / "head.log")
    try:
        yield address
    finally:
        ray.shutdown()
        _end(head)


def _start_head(options: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a head and wait until it runs, with retries: on a busy machine Ray's own time limit may be too short."""
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
    """Kill a head and its descendants, which include the added nodes."""
    started = [] if head.poll() is not None else psutil.Process(head.pid).children(recursive=True)
    head.kill()
    head.wait()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _config(address: str, nodes: dict[str, dict[str, float]], *, max_nodes: int, version: int) -> dict[str, Any]:
    """The autoscaler's configuration. The provider is external, because for Ray's own the autoscaler adds defaults."""
    provider = {"type": "external", "module": f"{__name__}.{Provider.__name__}"}
    switches = ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check")
    kinds = {
        name: {"resources": {**amounts, "object_store_memory": STORE}, "node_config": {}, "max_workers": max_nodes}
        for name, amounts in nodes.items()
    }
    kinds[FAKE_HEAD_NODE_TYPE] = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    commands = ("setup", "head_setup", "worker_setup", "initialization", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "growing",
        "max_workers": max_nodes * len(nodes),
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
