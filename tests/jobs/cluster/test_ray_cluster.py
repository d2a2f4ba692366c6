"""The end of a job's Ray."""

import weakref

import pytest
import ray

from jobs.cluster import session
from jobs.cluster.session import ray_cluster


class Holder:
    """Holds itself, as what failed does with its traceback: only garbage collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_ray_ends_with_no_garbage_left_that_another_thread_could_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ObjectRef that is freed while Ray ends makes Ray end the process, silently and with status 1."""
    left: list[object] = []
    monkeypatch.setattr(session, "init", lambda **_: None)
    with monkeypatch.context() as patch, ray_cluster(None, verbose=True):
        holder = weakref.ref(Holder())
        assert holder() is not None
        patch.setattr(ray, "shutdown", lambda: left.append(holder()))
    assert left == [None]
