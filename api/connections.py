"""Connections that send nothing, or read nothing, are closed, so that they cannot shut out others."""

import asyncio
import resource
import socket
from itertools import islice
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_OTHER_FILES: Final = 256
_SAMPLE: Final = 64  # connections of which the one that has waited longest is closed
ACCEPTED_AT_ONCE: Final = 64
"""uvicorn's `backlog`: asyncio accepts as many connections before it continues with the others."""
_BACKLOG: Final = 4_096


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with limits on the time of a head, on unread answers, and on the number of connections.

    A connection beyond the limit takes the place of one that has long waited for a head. Requests that are sent
    before the last one is answered (pipelined) are dropped with the connection: browsers and client libraries do not
    send any, and those of one connection would be answered before other callers' requests.
    """

    head_s = 10.0
    """Maximum seconds until a request's head has arrived: from the start of a connection, or from the last answer."""
    unread_s = 120.0
    """Maximum seconds during which a caller may read nothing of an answer that waits for it."""
    max_connections = 8_192
    _deadline = 0.0
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.time() + self.head_s
        self._close_at(self._deadline)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > min(self.max_connections, max(1, files - _OTHER_FILES)):
            sample = [each for each in islice(self.connections, _SAMPLE) if isinstance(each, BoundedProtocol)]
            idle = [each for each in sample if each._is_idle]
            min(idle or [self], key=lambda each: each._deadline).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle and not self.transport.is_closing():
            self._close_at(self._deadline)

    def on_response_complete(self) -> None:
        pipelined, _ = self.conn.trailing_data
        if pipelined.strip() and self.conn.our_state is h11.DONE:
            self.transport.close()
        super().on_response_complete()
        if self._is_idle:
            self._deadline = self.loop.time() + self.head_s

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_waiting_for_reader()

    @property
    def _is_idle(self) -> bool:
        """Whether it waits for a request's head."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _close_at(self, deadline: float) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(deadline, self.timeout_keep_alive_handler)

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class BoundedServer(uvicorn.Server):
    """Accepts few connections at a time, so that a flood of them does not delay requests. The others wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
