"""Requests made up from the app's own OpenAPI document: it keeps every promise made there, and never fails.

Schemathesis calls each route with what its schema allows and with what it forbids, and checks status, content type,
headers and body of the answers against the document.
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
from api.errors import PROBLEMS
from api.http.app import create_app
from api.http.problems import MEDIA_TYPE
from api.search.service import SearchService
from api.settings import Access
from embedder.fake import FakeEmbedder
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from tests.support.collections.small_collection import COLOURS, PLAIN, followed_service, make_collection, png

PROBLEM_OF: Final = {kind.type: kind for kind in PROBLEMS.values()}
PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
# What does not hold, and should not.
EXCEPTIONS: Final[list[dict[str, Any]]] = [
    # Whether a search or a version can be had depends on what the index holds: ids, columns, the length of vectors.
    {
        "include-path": ["/search", "/facets", "/embed", "/index/promote"],
        "checks": {"positive_data_acceptance": {"enabled": False}},
    },
    # The searches of a batch are judged one by one, and a wrong one fails alone. Forms are read leniently: an empty
    # field counts as left out. What is refused in JSON, field by field, is in test_app.
    {"include-path": ["/search", "/search/batch"], "checks": {"negative_data_rejection": {"enabled": False}}},
    # Without keys the caller is refused before the method is.
    {"include-path-regex": "^/index", "checks": {"unsupported_method": {"enabled": False}}},
]


@schemathesis.check
def errors_are_problems(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if response.status_code < 400:
        return
    assert response.headers["content-type"] == [MEDIA_TYPE]
    problem = json.loads(response.content)
    assert PROBLEM_OF[problem["type"]].status == problem["status"] == response.status_code


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> SearchService:
    """Three pictures. Every host's name leads to this machine, where nothing is fetched."""
    location = tmp_path_factory.mktemp("asked") / "collection"
    make_collection(location, PLAIN, FakeEmbedder())
    return followed_service(
        location,
        queries=Fetcher(FetchPolicy.for_untrusted_urls(), resolve=lambda host, port: ["127.0.0.1"]),
        pictures={f"memory:{name}": png(colour) for name, colour in COLOURS.items()},
    )


@pytest.mark.slow
def test_promises_are_kept_to_strangers(service: SearchService) -> None:
    assert broken_promises(create_app(service), phases=["examples", "coverage"]) == []


@pytest.mark.slow
def test_promises_are_kept_to_an_administrator(service: SearchService, tmp_path: Path) -> None:
    assert broken_promises(*behind_keys(service, tmp_path), phases=["examples", "fuzzing"], examples=20) == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_promises_are_kept_at_length(service: SearchService, tmp_path: Path) -> None:
    app, key = behind_keys(service, tmp_path)
    assert broken_promises(app, key, phases=PHASES, examples=200) == []


def behind_keys(service: SearchService, folder: Path) -> tuple[FastAPI, str]:
    """The app, and an administrator's key."""
    key = add_key(folder / "keys.json", "ops", KeyScope.admin)
    return create_app(service, access=Access(keys=KeyRing(folder / "keys.json"))), key


def broken_promises(app: FastAPI, key: str | None = None, *, phases: Sequence[str], examples: int = 1) -> list[str]:
    """What is wrong with the answers of `app`, with the requests that show it; `examples` of each route are made up."""
    config = SchemathesisConfig.from_dict(
        {
            "generation": {"deterministic": True, "max-examples": examples},
            "headers": {} if key is None else {"X-API-Key": key},
            # A valid key in one header is enough, whatever stands in the other.
            "checks": {"ignored_auth": {"enabled": False}},
            "operations": EXCEPTIONS,
            "phases": {name: {"enabled": name in phases} for name in PHASES},
        }
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config)
    wrong = []
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished(recorder=recorder):
                for case_id, checks in recorder.checks.items():
                    request = recorder.cases[case_id].value.as_curl_command()
                    wrong += [f"{check.failure_info.failure}\n{request}" for check in checks if check.failure_info]
            case events.NonFatalError(label=label, value=error):
                wrong.append(f"{label}: {error!r}")
            case events.FatalError(exception=error):
                raise error
    return wrong
