"""Calls to replicas that may die during the call. Uses Ray."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from api.errors import Problem

# An answer that has arrived while another was waited for is still taken.
_AT_HAND_S: Final = 0.05
# A call fails at once while there is no replica, so retries pause in between.
_PAUSE_S: Final = 0.03


def answer(call: Callable[[], Any], begun: Any, deadline: float) -> Any:
    """The answer to the call that has `begun`. If its replica dies, `call` is made again, until `deadline`.

    `deadline` is of `time.monotonic`. Raises the replica's own exceptions, TimeoutError, and RayError or
    RayServeException if there is no replica. Blocks the calling thread.
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


@contextmanager
def replica_errors(slug: str, who: str) -> Iterator[None]:
    """Raises a replica's own exceptions, and the Problem `slug` if no replica answers."""
    try:
        yield
    except RayTaskError as error:
        raise error.cause from None
    except (RayError, RayServeException, TimeoutError) as error:
        raise Problem(slug, f"{who} not answer: try again soon", retry_after_s=2) from error


def cancel(begun: Any) -> None:
    """Stop the work on a call, whatever its state."""
    with suppress(RayError, RayServeException):
        begun.cancel()
