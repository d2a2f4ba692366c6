"""Limits how much is worked on at once, and for how long."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem
from api.http.problems import problem_response

PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Requested every few seconds by machines that would take a busy server for a dead one."""

SEARCHING: Final = frozenset({"/search", "/search/batch", "/embed", "/search/collections"})
"""Requests to these cost a forward pass, whatever their method."""
# A body that comes over a usable network has arrived by then.
_KEPT_S: Final = 1.0

_KEPT: Final = "likeness.kept"


class Slots:
    """A limit on how many things are done at once. Not thread-safe: for one event loop."""

    def __init__(self, most: int, doing: str) -> None:
        self._most = most
        self._doing = doing
        self.taken = 0

    def require(self, count: int = 1) -> None:
        """Raises Problem unless `count` places are free.

        A request for more than half of all places is admitted once half are free; otherwise large batches would never
        get in. More than one place is held until the tasks that take them have begun, in the event loop's next round.
        """
        if self.taken + min(count, max(1, self._most // 2)) > self._most:
            raise _overloaded(self.taken, self._doing, count)
        if count > 1:
            self.taken += count
            asyncio.get_running_loop().call_soon(self._give_back, count)

    def keep_one(self) -> "ReservedSlot":
        """Takes a place for a request whose body is on its way. Raises Problem when all are taken."""
        self.require()
        return ReservedSlot(self)

    @contextmanager
    def taking(self, count: int = 1) -> Iterator[None]:
        """Holds `count` places even beyond the limit: an admitted request is never refused later."""
        self.taken += count
        try:
            yield
        finally:
            self._give_back(count)

    def _give_back(self, count: int) -> None:
        self.taken -= count


class ReservedSlot:
    """A place that is reserved for a while only: a body that comes slowly, or never, must not block other requests."""

    def __init__(self, places: Slots) -> None:
        self._places = places
        self._is_held = True
        places.taken += 1
        self._lapses = asyncio.get_running_loop().call_later(_KEPT_S, self.give_back)

    def keep(self) -> None:
        """Holds the place for a body that has arrived. Raises Problem when it has lapsed, and all are taken by now."""
        if not self._is_held:
            self._places.require()
            self._places.taken += 1
            self._is_held = True
        self._lapses.cancel()

    def give_back(self) -> bool:
        """Gives the place back; returns whether it was held until now."""
        was_held, self._is_held = self._is_held, False
        if was_held:
            self._places.taken -= 1
            self._lapses.cancel()
        return was_held


class ConcurrencyLimit:
    """Refuses requests beyond `most` at once, and searches as soon as `searching` is full.

    A request that takes too long is answered with a timeout, and one whose caller has left is not answered at all. The
    decoding of its picture ends then; other work goes on unheard, since a thread cannot be stopped, and the request's
    place is not free until it ends.
    """

    def __init__(self, app: ASGIApp, most: int, timeout_s: float, searching: Slots) -> None:
        self._app = app
        self._most = most
        self._timeout_s = timeout_s
        self._searching = searching
        self._ongoing: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (path := route_path(scope)) in PROBES:
            await self._app(scope, receive, send)
            return
        kept = None
        try:
            if len(self._ongoing) >= self._most:
                raise _overloaded(self._most, "requests are being worked on")
            if path in SEARCHING:
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
        body_came = asyncio.Event()
        if scope["method"] in ("GET", "HEAD"):  # these have no body, and the app does not ask for one
            body_came.set()

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                body_came.set()
            return message

        async def leaving() -> None:
            await body_came.wait()  # until then the messages are the app's
            with suppress(Exception):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            await asyncio.Event().wait()  # whether the caller has left cannot be known any more

        async def sending(message: Message) -> None:
            nonlocal started
            if not late:
                started = True
                await send(message)

        async def work() -> None:
            await self._app(scope, receiving, sending)

        task = asyncio.create_task(work())
        self._ongoing.add(task)
        task.add_done_callback(self._ongoing.discard)
        caller = asyncio.create_task(leaving())
        try:
            await asyncio.wait({task, caller}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:  # Ray Serve cancels the request of a caller who has left
            late = not task.done()
            has_left = caller.done()
            caller.cancel()
        if not late:
            task.result()
        elif not started and not has_left:  # otherwise the server closes the connection, since the answer is incomplete
            problem = Problem("timeout", f"no answer within {self._timeout_s:g} s", retry_after_s=1)
            await problem_response(problem)(scope, receive, send)


def admit_body(request: Request) -> None:
    """Admit the body of a search that has arrived, before it is parsed. Raises Problem when there is no place left."""
    if (kept := request.scope.get(_KEPT)) is not None:
        kept.keep()


def admit(request: Request, places: Slots, count: int) -> None:
    """Admit a request of `count` searches whose body has been read; each takes a place when it needs one.

    Raises Problem when too few places are free. The place that was kept for the body is enough for one search.
    """
    kept = request.scope.get(_KEPT)
    was_kept = kept is not None and kept.give_back()
    if count > 1 or not was_kept:
        places.require(count)


def route_path(scope: Scope) -> str:
    """The path of a request within the app, wherever that is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _overloaded(taken: int, doing: str, count: int = 1) -> Problem:
    asked = "come back soon" if count == 1 else f"{count} more are too many; come back soon, or with fewer"
    return Problem("overloaded", f"{taken} {doing}: {asked}", retry_after_s=1)
