"""Requests generated from the app's OpenAPI document: answers match the document, and none is a server error.

Schemathesis calls each route with values that its schema allows and forbids, and checks status, content type, headers
and body of the answers against the document.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis import Case
from schemathesis.checks import CheckContext
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.engine import events, from_schema

from api.access.keys import KeyRing, KeyScope, add_key
from api.http.app import create_app
from api.http.problem_responses import MEDIA_TYPE
from api.problems import PROBLEMS
from api.search.service import SearchService
from api.settings import Access
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from tests.support.collections.small_collection import COLOURS, PLAIN, followed_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder

PROBLEMS_BY_TYPE: Final = {kind.type: kind for kind in PROBLEMS.values()}
PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
# Checks that do not apply.
EXCEPTIONS: Final[list[dict[str, Any]]] = [
    # Whether such a request is valid depends on the index: its ids, columns and versions, the length of vectors.
    {
        "include-path": ["/search", "/search/collections", "/facets", "/embed", "/index/promote"],
        "checks": {"positive_data_acceptance": {"enabled": False}},
    },
    # An invalid search of a batch fails alone. An empty field of a form counts as absent. What is refused in JSON is
    # tested field by field in test_wrong_documents.
    {"include-path": ["/search", "/search/batch"], "checks": {"negative_data_rejection": {"enabled": False}}},
    # Without keys the caller is refused before the method.
    {"include-path-regex": "^/index", "checks": {"unsupported_method": {"enabled": False}}},
]


@schemathesis.check
def errors_are_problems(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if response.status_code < 400:
        return
    assert response.headers["content-type"] == [MEDIA_TYPE]
    problem = json.loads(response.content)
    assert PROBLEMS_BY_TYPE[problem["type"]].status == problem["status"] == response.status_code


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> SearchService:
    """Three pictures. Every host name resolves to this machine, from which nothing is fetched."""
    location = tmp_path_factory.mktemp("served") / "collection"
    make_collection(location, PLAIN, FakeEmbedder())
    return followed_service(
        location,
        queries=Fetcher(FetchPolicy.for_untrusted_urls(), resolve=lambda host, port: ["127.0.0.1"]),
        pictures={f"memory:{name}": png(colour) for name, colour in COLOURS.items()},
    )


@pytest.mark.slow
def test_the_api_matches_its_schema_without_a_key(service: SearchService) -> None:
    assert violations(create_app(service), phases=["examples", "coverage"]) == []


@pytest.mark.slow
def test_the_api_matches_its_schema_for_an_administrator(service: SearchService, tmp_path: Path) -> None:
    assert violations(*behind_keys(service, tmp_path), phases=["examples", "fuzzing"], examples=20) == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_api_matches_its_schema_in_many_examples(service: SearchService, tmp_path: Path) -> None:
    app, key = behind_keys(service, tmp_path)
    assert violations(app, key, phases=PHASES, examples=200) == []


def behind_keys(service: SearchService, folder: Path) -> tuple[FastAPI, str]:
    """The app, and an administrator's key."""
    key = add_key(folder / "keys.json", "ops", KeyScope.admin)
    return create_app(service, access=Access(keys=KeyRing(folder / "keys.json"))), key


def violations(app: FastAPI, key: str | None = None, *, phases: Sequence[str], examples: int = 1) -> list[str]:
    """What is wrong with the answers of `app`, with the requests; `examples` are generated for each route."""
    config = SchemathesisConfig.from_dict(
        {
            "generation": {"deterministic": True, "max-examples": examples},
            "headers": {} if key is None else {"X-API-Key": key},
            # A valid key in one header is enough, whatever the other contains.
            "checks": {"ignored_auth": {"enabled": False}},
            "operations": EXCEPTIONS,
            "phases": {name: {"enabled": name in phases} for name in PHASES},
        }
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    found = []
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished(recorder=recorder):
                for case_id, checks in recorder.checks.items():
                    request = recorder.cases[case_id].value.as_curl_command()
                    found += [f"{check.failure_info.failure}\n{request}" for check in checks if check.failure_info]
            case events.NonFatalError(label=label, value=error):
                found.append(f"{label}: {error!r}")
            case events.FatalError(exception=error):
                raise error
    return found
