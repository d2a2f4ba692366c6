"""How much is worked on at once, and for how long."""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem
from api.problems import problem_response

# Asked by machines that would take a busy server for a dead one.
_STATES: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class Bound:
    """Works on so many requests at once and sends the others away at once, so that those stay fast.

    What takes too long is answered for, and works on unheard: a thread cannot be stopped, and until it ends the
    request's place is not free.
    """

    def __init__(self, app: ASGIApp, most: int, timeout_s: float) -> None:
        self._app = app
        self._most = most
        self._timeout_s = timeout_s
        self._ongoing: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in _STATES:
            await self._app(scope, receive, send)
        elif len(self._ongoing) >= self._most:
            busy = Problem("overloaded", f"{self._most} requests are being worked on: come back soon", retry_after_s=1)
            await problem_response(busy)(scope, receive, send)
        else:
            await self._work(scope, receive, send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = late = False

        async def sending(message: Message) -> None:
            nonlocal started
            if not late:
                started = True
                await send(message)

        async def work() -> None:
            await self._app(scope, receive, sending)

        task = asyncio.create_task(work())
        self._ongoing.add(task)
        task.add_done_callback(self._ongoing.discard)
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
        finally:  # Ray Serve cancels the request of a caller who has left
            late = not task.done()
        if not late:
            task.result()
        elif not started:  # else the server closes the connection on an answer that has no end
            problem = Problem("timeout", f"no answer within {self._timeout_s:g} s", retry_after_s=1)
            await problem_response(problem)(scope, receive, send)


def route_path(scope: Scope) -> str:
    """The path of a request within the app, wherever that is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))
