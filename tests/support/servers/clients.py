"""Clients of an app in this process, and its problem documents."""

from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.testclient import TestClient


def on_this_machine(app: FastAPI, **options: Any) -> TestClient:
    """A client at a loopback address, which may change index versions without a key."""
    return TestClient(app, **{"base_url": "http://localhost:8000", "client": ("127.0.0.1", 50000), **options})


def search_star(client: TestClient | httpx.Client, **options: Any) -> Any:
    """The answer to a search for a word."""
    return client.post("/search", json={"text": "star", "k": 1}, **options)


def search(client: TestClient | httpx.Client, path: str = "/search", **body: Any) -> dict[str, Any]:
    """The answer to a search that succeeds."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def pages(client: TestClient, path: str = "/search", **body: Any) -> list[dict[str, Any]]:
    """The pages of a search, from the first one on or from its `cursor`; an `offset` is that of the first."""
    found = [search(client, path, **body)]
    body.pop("offset", None)
    while (cursor := found[-1]["cursor"]) is not None:
        found.append(search(client, path, **body | {"cursor": cursor}))
    return found


def ids(*answers: dict[str, Any]) -> list[str]:
    """The images of answers, page after page."""
    return [match["image_id"] for answer in answers for match in answer["matches"]]


def refusal(response: Any) -> tuple[int, str]:
    """Status and the slug of the problem."""
    return response.status_code, response.json()["type"].removeprefix("urn:likeness:problem:")
