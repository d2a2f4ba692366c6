"""A web server on loopback that can stand in for any host."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.pictures.fetching import answer
from tests.support.scripted_server import ScriptedServer, scripted


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """It has a picture at /picture."""
    with scripted() as server:
        server.routes["/picture"] = answer()
        yield server


@pytest.fixture
def connected(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses that the fetcher connects to after its checks. Every connection ends at the server."""
    addresses: list[tuple[str, int]] = []
    create_connection = socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        addresses.append(address)
        return create_connection(("127.0.0.1", server.server_port), timeout)

    monkeypatch.setattr("embedder.fetch.public_addresses.socket.create_connection", connect)
    return addresses
