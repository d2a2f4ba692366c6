"""How many embedding actors a cluster gets, the messages if they do not fit, and joining and leaving Ray."""

import pickle
import signal
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from ray._private.runtime_env.packaging import get_uri_for_directory

from embedder.models.checkpoint import DEMO_MODEL, Checkpoint
from jobs.cluster import session
from jobs.cluster.pool import Pool
from jobs.cluster.session import init, join, missing_package_message, ray_cluster, shipped_code
from jobs.embedding.model_source import ModelSource, loaded_memory
from jobs.errors import JobError

GIB = 2**30


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The nodes of a cluster, for tests to add to."""
    nodes: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    return nodes


def node(cpus: float = 8, gib: float = 32, **own: float) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": cpus, "memory": gib * GIB, **own}}


def sized(actors: tuple[int, int] | None = None, num_gpus: float | None = None, **actor: Any) -> Pool:
    return Pool(**actor).for_cluster(actors, num_gpus)


GPUS = [node(), node(8, GPU=4), node(8, GPU=2)]


@pytest.mark.parametrize(
    ("there", "options", "expected"),
    [
        # An actor for each node without GPUs, none for a head without CPUs.
        ([node(0), node(4), node(4), {**node(4), "Alive": False}], {}, (2, 2)),
        # GPUs are counted by node: shares of 0.3 are 13 and 6 by the GPUs, and 8 on the first by its CPUs.
        *(
            (GPUS, {"num_gpus": share}, (actors, actors))
            for share, actors in ((None, 6), (0.5, 12), (0.3, 14), (1.0, 6), (2.0, 3), (4.0, 1))
        ),
        # The scarcest resource counts.
        ([node(npu=2), node(npu=3), node(8, 6, npu=4)], {"resources": {"npu": 1}, "memory": 4 * GIB}, (6, 6)),
        ([node(2, GPU=4), node(1, GPU=1)], {}, (2, 2)),  # one CPU is left for decoding
        ([node(8, GPU=4)], {"num_cpus": 3}, (2, 2)),  # and two CPUs to decode
        ([node(8, 3)], {"memory": 3 * GIB // 2}, (1, 1)),  # and 1 GiB
        ([node(8, 3.5, npu=4)], {"resources": {"npu": 1}, "memory": 3 * GIB // 2}, (1, 1)),
        ([node(1, 4), node(2, 0.5), node(1, 2)], {"memory": 2 * GIB}, (1, 1)),
        ([node(GPU=1)], {"actors": (1, 16), "num_gpus": 1.0}, (1, 16)),  # more than fit now
    ],
)
def test_actors_are_as_many_as_the_nodes_have_room_for(
    nodes: list[dict[str, Any]], there: list[dict[str, Any]], options: dict[str, Any], expected: tuple[int, int]
) -> None:
    nodes += there
    assert sized(**options).actors == expected


def test_what_an_actor_reserves() -> None:
    reserved = Pool(resources={"npu": 1}, memory=4 * GIB).reserved
    none = {"num_gpus": None, "accelerator_type": None}
    assert reserved == {"num_cpus": 1, "resources": {"npu": 1}, "memory": 4 * GIB, **none}


def test_another_device_needs_no_gpu_and_a_label_of_nodes_with_gpus_does(nodes: list[dict[str, Any]]) -> None:
    nodes += [node(8, GPU=2, fast=1), node(8, npu=3)]
    assert (sized().num_gpus, sized().actors) == (1, (2, 2))
    pool = sized(resources={"npu": 1})
    assert (pool.num_gpus, pool.actors) == (0, (3, 3))
    assert sized(resources={"fast": 0.1}).num_gpus == 1


def test_a_job_that_has_to_wait_for_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"CPU": 8.0, "GPU": 0.5, "memory": 3.0 * GIB}
    monkeypatch.setattr(ray, "available_resources", lambda: free)
    assert Pool(num_gpus=0.5, memory=2 * GIB).shortage() is None
    assert Pool(num_gpus=1, memory=5 * GIB // 2).shortage() == (
        "the cluster has 3,072 MiB, 0.5 GPU free, but an actor and decoding need 3,584 MiB, 1 GPU: the job waits until "
        "other jobs end or the cluster grows"
    )


KINDS = [node(GPU=2, **{"accelerator_type:A100": 1}), node(GPU=1, **{"accelerator_type:L4": 1}), node(disk=1)]
NO_ROOM = (
    r"may leave no node with 1 CPU, 1,024 MiB for decoding \(the largest has {} MiB for Ray\): free some memory, "
    "or add a node"
)
TOO_MUCH: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    (KINDS, {"actors": (24, 24), "num_gpus": 0}, "24 actors, .* 1 CPU, 1,024 MiB .*: ask for at most 23"),
    (KINDS, {"num_gpus": 3}, "an actor needs 3 GPU, but no node has more than 2 GPU: ask for a smaller share"),
    (KINDS, {"resources": {"npu": 1}}, "an actor needs 1 npu, but no node has more than 0 npu: ask for less"),
    (KINDS, {"num_cpus": 9},
     "an actor needs 9 CPU, but no node has more than 8 CPU: ask for less with --cpus-per-actor"),
    (KINDS, {"num_cpus": 9, "resources": {"npu": 1}}, "9 CPU, 1 npu, .* 8 CPU, 0 npu: ask for less, or add such"),
    (KINDS, {"memory": 64 * GIB}, "needs 65,536 MiB, but no node has more than 32,768 MiB: free some memory"),
    (KINDS, {"accelerator_type": "H200"}, "the cluster has no accelerator 'H200': it has A100, L4; give one of these"),
    (KINDS, {"actors": (5, 9), "num_gpus": 0.5, "accelerator_type": "A100"},
     r"5 actors were requested, each with 1 CPU, 0.5 GPU; the cluster has room for 4: ask for fewer"),
    (KINDS, {"num_gpus": 1, "resources": {"disk": 1}},
     "has all that an actor needs, 1 CPU, 1 GPU, 1 disk: ask for less"),
    # Decoding needs room wherever Ray puts the actors, or the job would wait for ever, without a visible warning.
    ([node(4, 0.5), node(4, 0.75)], {}, NO_ROOM.format("768")),
    ([node(8, 3)], {"memory": 5 * GIB // 2}, "1 actors, each with 1 CPU, 2,560 MiB, " + NO_ROOM.format("3,072")),
    ([node(8, 3.5, npu=4)], {"actors": (2, 2), "resources": {"npu": 1}, "memory": 3 * GIB // 2},
     "2 actors, .*: ask for at most 1 with --actors"),
    ([node(1, 4), node(2, 0.5)], {"memory": 2 * GIB}, NO_ROOM.format("4,096")),  # no memory where a CPU is left
]  # fmt: skip


@pytest.mark.parametrize(("there", "options", "message"), TOO_MUCH)
def test_what_no_node_can_hold_is_refused(
    nodes: list[dict[str, Any]], there: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    nodes += there
    with pytest.raises(JobError, match=message):
        sized(**options)


def test_the_four_packages_and_the_demo_model_are_shipped() -> None:
    folders = shipped_code()["py_modules"]
    assert [folder.rpartition("/")[2] for folder in folders] == ["embedder", "index", "jobs", "api"]
    assert DEMO_MODEL.is_relative_to(folders[0])


def test_compiled_files_are_not_shipped(tmp_path: Path) -> None:
    """Otherwise the code is sent again whenever a machine has run it."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("A = 1")
    excludes = shipped_code()["excludes"]

    def address() -> str:
        return str(get_uri_for_directory(str(package), include_gitignore=True, excludes=list(excludes)))

    before = address()
    (package / "__pycache__").mkdir()
    for path in ("__pycache__/module.cpython-311.pyc", "module.pyc", ".env"):
        (package / path).write_bytes(b"compiled")
    assert address() == before
    (package / "module.py").write_text("A = 2")
    assert address() != before


def test_own_py_modules_are_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ValueError("Failed to merge the Job's runtime env")
    monkeypatch.setattr("jobs.cluster.session.init", Mock(side_effect=refused))
    with pytest.raises(JobError, match=r"with its own py_modules: omit them, or set RAY_OVERRIDE_JOB_RUNTIME"):
        join("auto")


def test_a_model_is_found_by_its_name_on_other_machines() -> None:
    demo = Checkpoint.find("demo")
    here, other = ModelSource(model="demo", batch_size=8, found=demo), ModelSource(model="google/siglip")
    there = pickle.loads(pickle.dumps(here))
    assert (there.model, there.batch_size, there.found) == ("demo", 8, None)
    assert there().identity == here().identity
    assert pickle.loads(pickle.dumps(other)) == other
    weights = sum(path.stat().st_size for path in DEMO_MODEL.glob("*.safetensors"))
    assert loaded_memory(demo) == GIB + weights


def test_a_package_that_a_worker_lacks_is_named() -> None:
    error = RuntimeError("Traceback …\nModuleNotFoundError: No module named 'faiss.contrib'\n")
    message = "a worker has no package 'faiss': the image of every node must have what Likeness needs"
    assert str(missing_package_message(error)).startswith(message)
    hidden = missing_package_message(RuntimeError("No module named 'embedder.models'; 'embedder' is not a package"))
    assert f"is there a file embedder.py or a folder embedder in {Path.cwd()}? Rename it" in str(hidden)
    assert missing_package_message(RuntimeError("out of memory")) is None


def test_ray_ends_with_no_garbage_left_that_another_thread_could_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an ObjectRef is freed while Ray shuts down, Ray ends the process with status 1 and no message."""

    class Holder:
        """Refers to itself, as an exception does by its traceback, so only garbage collection frees it."""

        def __init__(self) -> None:
            self.itself = self

    left: list[object] = []
    monkeypatch.setattr(session, "init", lambda **_: None)
    with monkeypatch.context() as patch, ray_cluster(None, verbose=True):
        holder = weakref.ref(Holder())
        assert holder() is not None
        patch.setattr(ray, "shutdown", lambda: left.append(holder()))
    assert left == [None]


def test_starting_ray_keeps_the_handler_of_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []

    def record(number: int, _: object) -> None:
        received.append(number)

    def exit_like_ray(number: int, _: object) -> None:
        sys.exit(number)

    def start(**_: object) -> None:
        signal.signal(signal.SIGTERM, exit_like_ray)
        if stopped_meanwhile:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("ray.init", start)
    before = signal.signal(signal.SIGTERM, record)
    try:
        stopped_meanwhile = False
        init(address="local")
        assert signal.getsignal(signal.SIGTERM) is record
        stopped_meanwhile = True
        with pytest.raises(SystemExit):
            init(address="local")
        assert (received, signal.getsignal(signal.SIGTERM)) == ([signal.SIGTERM], record)
    finally:
        signal.signal(signal.SIGTERM, before)
