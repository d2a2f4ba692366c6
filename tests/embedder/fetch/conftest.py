"""A web server on loopback, which any host may be made to stand for."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.pictures.fetching import answer
from tests.support.servers.scripted_server import ScriptedServer, scripted


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """It has a picture at /picture."""
    with scripted() as server:
        server.routes["/picture"] = answer()
        yield server


@pytest.fixture
def connected(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that the fetcher went to once it had checked them. It got to the server wherever it went."""
    addresses: list[tuple[str, int]] = []
    really = socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        addresses.append(address)
        return really(("127.0.0.1", server.server_port), timeout)

    monkeypatch.setattr("embedder.fetch.addresses.socket.create_connection", connect)
    return addresses
