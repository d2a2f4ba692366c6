"""How much is worked on at once, and for how long."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem
from api.problems import problem_response

# Asked by machines that would take a busy server for a dead one.
_STATES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
# What is sent here costs a forward pass.
_SEARCHING: Final = frozenset({"/search", "/search/batch", "/embed"})
# What comes over a network that is worth the name is there by then.
_KEPT_S: Final = 1.0

_KEPT: Final = "likeness.kept"


class Places:
    """So many things may be done at once. Not thread-safe: for one event loop."""

    def __init__(self, most: int, doing: str) -> None:
        self._most = most
        self._doing = doing
        self.taken = 0

    def require_one(self) -> None:
        """Raises Problem when all are taken."""
        if self.taken >= self._most:
            raise _overloaded(self._most, self._doing)

    def keep_one(self) -> "Kept":
        """Takes one for a request whose body is on its way. Raises Problem when all are taken."""
        self.require_one()
        return Kept(self)

    @contextmanager
    def taking(self, count: int = 1) -> Iterator[None]:
        """Takes so many while the block lasts, be there as many or not: what was let in is not turned away later."""
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count


class Kept:
    """A place that is kept for a while: who sends slowly, or never, keeps others from it no longer."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._is_held = True
        places.taken += 1
        self._lapses = asyncio.get_running_loop().call_later(_KEPT_S, self.give_back)

    def give_back(self) -> bool:
        """Whether it was held until now."""
        was_held, self._is_held = self._is_held, False
        if was_held:
            self._places.taken -= 1
            self._lapses.cancel()
        return was_held


class Bound:
    """Has so many requests at once and sends the others away at once, and searches as soon as `searching` is full.

    What takes too long is answered for, and works on unheard: a thread cannot be stopped, and until it ends the
    request's place is not free.
    """

    def __init__(self, app: ASGIApp, most: int, timeout_s: float, searching: Places | None = None) -> None:
        self._app = app
        self._most = most
        self._timeout_s = timeout_s
        self._searching = searching
        self._ongoing: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (path := route_path(scope)) in _STATES:
            await self._app(scope, receive, send)
            return
        kept = None
        try:
            if len(self._ongoing) >= self._most:
                raise _overloaded(self._most, "requests are being worked on")
            if self._searching is not None and path in _SEARCHING:
                scope[_KEPT] = kept = self._searching.keep_one()
        except Problem as busy:
            await problem_response(busy)(scope, receive, send)
            return
        try:
            await self._work(scope, receive, send)
        finally:
            if kept is not None:
                kept.give_back()

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


def admit(request: Request, places: Places) -> None:
    """Begin a request that has been read: it takes places as it needs them.

    Raises Problem when the one that was kept for it has lapsed and there is none.
    """
    kept = request.scope.get(_KEPT)
    if kept is None or not kept.give_back():
        places.require_one()


def route_path(scope: Scope) -> str:
    """The path of a request within the app, wherever that is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _overloaded(most: int, doing: str) -> Problem:
    return Problem("overloaded", f"{most} {doing}: come back soon", retry_after_s=1)
