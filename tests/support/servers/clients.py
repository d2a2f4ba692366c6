"""Clients of an app in this process, and what they are told."""

from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient


def on_this_machine(app: FastAPI, **options: Any) -> TestClient:
    """A client that may change index versions without a key: the test client's own address is nowhere."""
    return TestClient(app, **{"base_url": "http://localhost:8000", "client": ("127.0.0.1", 50000), **options})


def search_star(client: TestClient | httpx.Client, **options: Any) -> Any:
    """The answer to a search by a word."""
    return client.post("/search", json={"text": "star", "k": 1}, **options)


def told(response: Any) -> tuple[int, str]:
    """Status and the problem's name."""
    return response.status_code, response.json()["type"].removeprefix("urn:likeness:problem:")
