"""Whether a cluster has room for the replicas that it is asked for."""

from collections.abc import Mapping

from api.settings import ServeSettings


def shortage(settings: ServeSettings, resources: Mapping[str, float]) -> str | None:
    """What the fewest replicas that `settings` ask for need beyond `resources`, as Ray counts them, and what to do.

    None where there is room.
    """
    embedders = settings.embedders.least if settings.embedders else 0
    for kind, replicas, each in (
        ("CPU", settings.replicas.least + embedders, settings.num_cpus),
        ("GPU", embedders or settings.replicas.least, settings.num_gpus),
    ):
        needed, there = replicas * each, resources.get(kind, 0.0)
        if needed > there + 1e-6:
            return (
                f"expected {needed:g} {kind}s, {each:g} for each of {replicas} replicas, got {there:g}: ask for fewer "
                f"with --replicas and --embedders, or for less for each with LIKENESS_NUM_{kind}S"
            )
    return None
