"""Calls to replicas that may die during the call. Uses Ray."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any, Final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from api.problems import Problem

# Even after the deadline, so that an answer that came while the caller waited for another one is still used.
_MIN_WAIT_S: Final = 0.05
# Calls fail at once while there is no replica, so retries pause in between.
_PAUSE_S: Final = 0.03


def answer(call: Callable[[], Any], response: Any, deadline: float) -> Any:
    """Wait for the answer of `response`, which `call` returned. If the replica dies, `call` again, until `deadline`.

    `deadline` is a time of `time.monotonic`. Raises the replica's own exceptions, TimeoutError, and RayError or
    RayServeException if there is no replica. Blocks the calling thread.
    """
    while True:
        try:
            return response.result(timeout_s=max(_MIN_WAIT_S, deadline - monotonic()))
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError:
            if monotonic() >= deadline:
                raise
            sleep(_PAUSE_S)
            response = call()
        except TimeoutError:
            cancel(response)
            raise


@contextmanager
def replica_errors(problem: type[Problem], message: str) -> Iterator[None]:
    """Raises a replica's own exceptions, and `problem` with this message if no replica answers."""
    try:
        yield
    except RayTaskError as error:
        raise error.cause from None
    except (RayError, RayServeException, TimeoutError) as error:
        raise problem(f"{message}: try again soon", retry_after_s=2) from error


def cancel(response: Any) -> None:
    """Stop the work on a call, in whatever state it is."""
    with suppress(RayError, RayServeException):
        response.cancel()
