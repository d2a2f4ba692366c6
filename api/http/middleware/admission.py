"""Limits how many requests are in progress, and for how long."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import AnswerTimeout, Overloaded

PROBE_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Requested every few seconds by monitoring, which would take a refusal for a dead server."""

SEARCH_PATHS: Final = frozenset({"/search", "/search/batch", "/embed", "/search/collections"})
"""Requests to these cost a forward pass, whatever their method."""
# Over a usable network, a body has arrived by then; one that has not makes place for other requests.
_RESERVED_S: Final = 1.0

SLOT: Final = "likeness.slot"
"""In the scope: the Slot of a search."""


class Slots:
    """Limits how many operations run at once. Not thread-safe: for one event loop.

    `activity` completes the message of a refusal: "32 searches are in progress", for example.
    """

    def __init__(self, limit: int, activity: str) -> None:
        self._limit = limit
        self._activity = activity
        self.taken = 0

    def require(self, count: int = 1) -> None:
        """Raises Overloaded unless `count` slots are free.

        A request for more than half of all slots is admitted once half are free; otherwise large batches would never
        get in. Several slots are held until the tasks that need them have started, in the event loop's next iteration.
        """
        if self.taken + min(count, max(1, self._limit // 2)) > self._limit:
            raise _overloaded(self.taken, self._activity, count)
        if count > 1:
            self.taken += count
            asyncio.get_running_loop().call_soon(self._release, count)

    @contextmanager
    def reserve(self) -> Iterator["Slot"]:
        """The slot of a request while the block lasts. Raises Overloaded if all are taken."""
        self.require()
        slot = Slot(self)
        try:
            yield slot
        finally:
            slot.release()

    @contextmanager
    def hold(self, count: int = 1) -> Iterator[None]:
        """Hold `count` slots, even beyond the limit: an admitted request is never refused later."""
        self.taken += count
        try:
            yield
        finally:
            self._release(count)

    def _release(self, count: int) -> None:
        self.taken -= count


class Slot:
    """The slot of a request, until its searches take theirs.

    It expires while the body is on its way: one that arrives slowly, or never, must not block other requests.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_held = True
        slots.taken += 1
        self._expiry = asyncio.get_running_loop().call_later(_RESERVED_S, self.release)

    def keep(self) -> None:
        """Keep the slot, as the body has arrived. Raises Overloaded if it has expired and all are taken by now."""
        if not self._is_held:
            self._slots.require()
            self._slots.taken += 1
            self._is_held = True
        self._expiry.cancel()

    def release(self) -> bool:
        """Release the slot; returns whether it was held until now."""
        was_held, self._is_held = self._is_held, False
        if was_held:
            self._slots.taken -= 1
            self._expiry.cancel()
        return was_held

    def admit(self, count: int) -> None:
        """Release the slot for `count` searches, each of which takes one when it starts.

        Raises Overloaded if too few are free. The slot of the request is enough for one search.
        """
        had_slot = self.release()
        if count > 1 or not had_slot:
            self._slots.require(count)


class ConcurrencyLimit:
    """Refuses requests when `limit` are in progress, and searches when `searching` is full.

    A request beyond the limit takes the place of one that has long waited for its body, so that callers who send
    bodies slowly, or never, cannot shut out others.

    A request that takes too long is answered with a timeout, and one whose caller has left is not answered at all.
    Either way the decoding of its picture stops. Other work continues, since a thread cannot be stopped, and the
    request's slot is free only when that ends.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout_s: float, searching: Slots) -> None:
        self._app = app
        self._limit = limit
        self._timeout_s = timeout_s
        self._searching = searching
        self._ongoing: set[asyncio.Task[None]] = set()
        self._bodies: dict[asyncio.Task[None], float] = {}
        """When tasks began to wait for their bodies, the oldest first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (path := route_path(scope)) in PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        if len(self._ongoing) >= self._limit and not self._end_slow_body():
            raise _overloaded(self._limit, "requests are in progress")
        with ExitStack() as slot:
            if path in SEARCH_PATHS:
                scope[SLOT] = slot.enter_context(self._searching.reserve())
            await self._work(scope, receive, send)

    def _end_slow_body(self) -> bool:
        """End the request that has waited for its body the longest; whether there was one that could have it by now."""
        task, since = next(iter(self._bodies.items()), (None, 0.0))
        if task is None or asyncio.get_running_loop().time() - since < _RESERVED_S:
            return False
        task.cancel()
        self._forget(task)
        return True

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._ongoing.discard(task)
        self._bodies.pop(task, None)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = late = False
        body_is_complete = asyncio.Event()

        def complete_body() -> None:
            body_is_complete.set()
            self._bodies.pop(task, None)

        async def receive_body() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                complete_body()
                if SLOT in scope and not late:
                    scope[SLOT].keep()
            return message

        async def wait_for_disconnect() -> None:
            await body_is_complete.wait()  # until then the app receives the messages
            with suppress(Exception):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
            await asyncio.Event().wait()  # a disconnect can no longer be noticed

        async def send_unless_late(message: Message) -> None:
            nonlocal started
            if not late:
                started = True
                await send(message)

        async def work() -> None:
            await self._app(scope, receive_body, send_unless_late)

        task = asyncio.create_task(work())
        self._ongoing.add(task)
        self._bodies[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._forget)
        if scope["method"] in ("GET", "HEAD"):  # these have no body, and the app does not read one
            complete_body()
        caller = asyncio.create_task(wait_for_disconnect())
        try:
            await asyncio.wait({task, caller}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:  # Ray Serve cancels the request of a caller who has left
            late = not task.done()
            has_left = caller.done()
            caller.cancel()
        if task.cancelled() and not started:
            raise _overloaded(self._limit, "requests are in progress, and the body of this one came slowly")
        if not late:
            task.result()
        elif not started and not has_left:  # else the server closes the connection, as the answer is incomplete
            raise AnswerTimeout(f"no answer within {self._timeout_s:g} s", retry_after_s=1)


def route_path(scope: Scope) -> str:
    """The path of a request within the app, wherever the app is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _overloaded(taken: int, activity: str, count: int = 1) -> Overloaded:
    advice = "retry soon" if count == 1 else f"{count} more are too many; retry soon, or with fewer"
    return Overloaded(f"{taken} {activity}: {advice}", retry_after_s=1)
