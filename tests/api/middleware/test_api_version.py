"""The header that names the version of the HTTP interface."""

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.http.middleware.telemetry import HeadersMiddleware
from api.http.problems import install_problems


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    install_problems(app)
    app.add_middleware(HeadersMiddleware)
    return TestClient(app)


@pytest.mark.parametrize("asked", [None, "1", " 1 "])
def test_every_answer_says_its_version(client: TestClient, asked: str | None) -> None:
    headers = {} if asked is None else {"API-Version": asked}
    assert client.get("/docs", headers=headers).headers["api-version"] == "1"
    assert client.get("/nowhere", headers=headers).headers["api-version"] == "1"


@pytest.mark.parametrize("asked", ["2", "", "1.0", "latest"])
def test_another_version_is_refused(client: TestClient, asked: str) -> None:
    response = client.get("/docs", headers={"API-Version": asked})
    document = response.json()
    assert (response.status_code, document["type"]) == (400, "urn:likeness:problem:unknown-api-version")
    assert document["detail"] == f'expected API-Version: 1, got "{asked}"'
    assert response.headers["api-version"] == "1"
