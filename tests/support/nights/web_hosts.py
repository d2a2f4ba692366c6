"""Web servers on several loopback addresses, whose pictures change, vanish, come back and fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Literal

from tests.support.nights.reembed_nights import bmp
from tests.support.scripted_server import Player, ReceivedRequest, Reply, ScriptedServer, scripted

State = int | Literal["gone", "failing"]
"""What is at an address: a picture, by its seed, or none."""

_FAILURES = (Reply(status=500), Reply(status=503), Reply(status=403), Reply(hang_up=True))
_GONE = (Reply(status=404), Reply(status=410))


@dataclass
class WebHosts:
    """`states` has what is at each address; `down` names hosts that hang up. The number in an address decides which
    validators its pictures have: an ETag, a date, both, none, or an ETag that changes every night.
    """

    servers: list[ScriptedServer] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    night: int = 0

    def address(self, number: int) -> str:
        return f"{self.servers[number % len(self.servers)].url}/{number}.bmp"

    def begin_night(self) -> None:
        self.night += 1
        for server in self.servers:
            server.requests.clear()
            server.max_ongoing = 0

    @property
    def requests(self) -> Counter[str]:
        """How often each address was asked for this night."""
        return Counter(f"{server.url}{request.path}" for server in self.servers for request in server.requests)

    @property
    def unconditional(self) -> Counter[str]:
        """How often each address was asked for this night without a condition."""
        return Counter(
            f"{server.url}{request.path}"
            for server in self.servers
            for request in server.requests
            if not {"if-none-match", "if-modified-since"} & request.headers.keys()
        )

    @property
    def max_ongoing(self) -> int:
        """The most requests of this night that one host had to answer at a time."""
        return max(server.max_ongoing for server in self.servers)

    def __call__(self, player: Player) -> None:
        host = player.server.url
        state = self.states.get(host + player.path, "gone")
        number = int(player.path.strip("/.bmp"))
        if host in self.down:
            reply = Reply(hang_up=True)
        elif state == "gone":
            reply = _GONE[number % 2]
        elif state == "failing":
            reply = _FAILURES[number % 4]
        else:
            reply = self._picture(number, state, player.received)
        reply(player)

    def _picture(self, number: int, seed: int, request: ReceivedRequest) -> Reply:
        kind, headers = number // len(self.servers) % 5, {"Content-Type": "image/bmp"}
        if kind in (0, 2, 4):
            headers["ETag"] = f'"{seed}"' if kind < 4 else f'W/"{seed}-{self.night}"'
        if kind in (1, 2):
            headers["Last-Modified"] = formatdate(1e9 + seed, usegmt=True)
        if "ETag" in headers:
            same = request.headers.get("if-none-match") == headers["ETag"]
        else:
            same = request.headers.get("if-modified-since", "-") == headers.get("Last-Modified")
        return Reply(status=304, data=b"", headers=headers) if same else Reply(data=bmp(seed), headers=headers)


@contextmanager
def web_hosts(number: int) -> Iterator[WebHosts]:
    """Run the servers of 127.0.0.1, 127.0.0.2, … during the block."""
    hosts = WebHosts()
    with ExitStack() as running:
        for host in range(1, number + 1):
            server = running.enter_context(scripted(host=f"127.0.0.{host}"))
            server.routes["*"] = hosts
            hosts.servers.append(server)
        yield hosts
