"""Calls to replicas that may die meanwhile. Uses Ray, as `api.deployment` does."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException

# What has been answered while another was waited for is taken all the same.
_AT_HAND_S: Final = 0.05
# A replica that is not there for the moment says so at once.
_PAUSE_S: Final = 0.03


def answer(call: Callable[[], Any], begun: Any, deadline: float) -> Any:
    """What the call that has `begun` is answered. Where its replica dies it is made again, until `deadline`.

    `deadline` is of `time.monotonic`. Raises what the replica raises as it was raised there, TimeoutError, and
    RayError or RayServeException where there is no replica. For a thread that may wait.
    """
    while True:
        try:
            return begun.result(timeout_s=max(_AT_HAND_S, deadline - monotonic()))
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError:
            if monotonic() >= deadline:
                raise
            sleep(_PAUSE_S)
            begun = call()
        except TimeoutError:
            cancel(begun)
            raise


def cancel(begun: Any) -> None:
    """Let nobody work on a call any more, whatever came of it."""
    with suppress(RayError, RayServeException):
        begun.cancel()
