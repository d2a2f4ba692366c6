"""Lets a cluster that grows on demand add the nodes that a job needs, and waits for them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ray.util.placement_group import placement_group, remove_placement_group
from rich.console import Console

from jobs.cluster.pool import Pool
from jobs.errors import JobError

_LOOK_S = 1.0


def fitting_in_time(
    fitting: Callable[[], Pool], demand: Sequence[Mapping[str, float]], seconds: int | None, console: Console
) -> Pool:
    """`fitting()`, as soon as the nodes are there for which it raises JobError now; Ray is connected.

    `demand` is what the autoscaler is asked for. JobError says what is missing after so many seconds; None: at once.
    Nodes that others use now are not waited for here: that is only said.
    """
    try:
        pool = fitting()
        if waits := pool.lacking_now():
            console.print(waits, highlight=False, soft_wrap=True)
        return pool
    except JobError as error:
        if seconds is None:
            raise JobError(f"{error}. If the cluster adds nodes on demand, wait with --wait-for-nodes 10m") from error
        missing = str(error)
    console.print(f"waiting for nodes, {seconds} s at most: {missing}", highlight=False, markup=False, soft_wrap=True)
    began = time.monotonic()
    with _asked_of_autoscaler(demand), console.status("") as shown:
        while (waited := time.monotonic() - began) < seconds:
            shown.update(f"waiting for nodes: {waited:.0f} of {seconds} s")
            time.sleep(_LOOK_S)
            try:
                pool = fitting()
            except JobError as error:
                missing = str(error)
            else:
                console.print(f"the nodes were added within {time.monotonic() - began:.0f} s", highlight=False)
                return pool
    raise JobError(
        f"the cluster did not get the nodes within {seconds} s: {missing}. `ray status` there shows which nodes its "
        "autoscaler may add, and why it adds none; --wait-for-nodes can give it more time"
    )


@contextmanager
def _asked_of_autoscaler(demand: Sequence[Mapping[str, float]]) -> Iterator[None]:
    """A placement group is demand while it pends, is one among those of other jobs, and ends with the job's process.

    `ray.autoscaler.sdk.request_resources` sets the demand of the whole cluster, and Ray Data's jobs set it every 20 s.
    """
    group = placement_group([dict(bundle) for bundle in demand])
    try:
        yield
    finally:
        remove_placement_group(group)
