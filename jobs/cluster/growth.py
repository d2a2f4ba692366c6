"""Requests the nodes that a job needs from a cluster that grows on demand, and waits for them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ray.util.placement_group import placement_group, remove_placement_group
from rich.console import Console

from jobs.cluster.pool import Pool
from jobs.errors import JobError

_POLL_S = 1.0


def wait_for_pool(
    make_pool: Callable[[], Pool], demand: Sequence[Mapping[str, float]], seconds: int | None, console: Console
) -> Pool:
    """The pool of `make_pool`, which raises JobError until the connected cluster has the nodes for it.

    `demand` is requested from the autoscaler. Raises JobError if nodes are still missing after `seconds`, with None at
    once. If other jobs are using the nodes, a message says so and nothing is waited for.
    """
    try:
        pool = make_pool()
        if shortage := pool.shortage():
            console.print(shortage, highlight=False, soft_wrap=True)
        return pool
    except JobError as error:
        if seconds is None:
            raise JobError(f"{error}. If the cluster adds nodes on demand, wait with --wait-for-nodes 10m") from error
        missing = str(error)
    console.print(f"waiting up to {seconds} s for nodes: {missing}", highlight=False, markup=False, soft_wrap=True)
    began = time.monotonic()
    with _requested_nodes(demand), console.status("") as status:
        while (waited := time.monotonic() - began) < seconds:
            status.update(f"waiting for nodes: {waited:.0f} of {seconds} s")
            time.sleep(_POLL_S)
            try:
                pool = make_pool()
            except JobError as error:
                missing = str(error)
            else:
                console.print(f"the nodes were added within {time.monotonic() - began:.0f} s", highlight=False)
                return pool
    raise JobError(
        f"the cluster did not get the nodes within {seconds} s: {missing}. `ray status` there shows which nodes its "
        "autoscaler may add, and why it adds none; raise --wait-for-nodes to give it more time"
    )


@contextmanager
def _requested_nodes(demand: Sequence[Mapping[str, float]]) -> Iterator[None]:
    """Requests nodes by a pending placement group, which adds to the demand of other jobs and ends with this process.

    `ray.autoscaler.sdk.request_resources` would replace the whole cluster's demand, as Ray Data's jobs do every 20 s.
    """
    group = placement_group([dict(bundle) for bundle in demand])
    try:
        yield
    finally:
        remove_placement_group(group)
