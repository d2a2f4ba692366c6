"""Clients that others generate from the OpenAPI document: their types are checked, and they search."""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.http.app import create_app
from api.local import running
from api.search.query import Part, Query
from api.search.service import SearchService
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, fake_service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = """
from io import BytesIO
import sys

from likeness_client import Client
from likeness_client.api.search import batch, embed, search
from likeness_client.models import BatchRequest, EmbedRequest, Found, SearchFilesBody, SearchRequest, SearchResponse
from likeness_client.models.embedded import Embedded
from likeness_client.types import File

client = Client(sys.argv[1])


def show(found: object) -> None:
    assert isinstance(found, SearchResponse), found
    print(*(match.image_id for match in found.matches))


show(search.sync(client=client, body=SearchRequest(text="a dark red", k=3)))
show(search.sync(client=client, body=SearchRequest(id="blue.png", k=2, filter_=None)))
with open(sys.argv[2], "rb") as file:
    picture = File(payload=BytesIO(file.read()), file_name="a.png")
show(search.sync(client=client, body=SearchFilesBody(image=picture, k=1)))
searches = [SearchRequest(id="blue.png", k=1), SearchRequest(id="gone")]
both = batch.sync(client=client, body=BatchRequest(searches=searches))
assert both is not None and not hasattr(both, "status"), both
first, second = both.results
assert isinstance(first, Found)
show(first.ok)
print(type(second).__name__)
vectors = embed.sync(client=client, body=EmbedRequest(texts=["a star"]))
assert vectors is not None and not hasattr(vectors, "status"), vectors
(vector,) = vectors.results
assert isinstance(vector, Embedded)
print(len(vector.ok))
"""

TYPESCRIPT = """
import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

const client = createClient<paths>({ baseUrl: process.argv[2] });
type Answer = components["schemas"]["SearchResponse"];
const show = (found: Answer | undefined) => console.log(found!.matches.map((match) => match.image_id).join(" "));

show((await client.POST("/search", { body: { text: "a dark red", k: 3 } })).data);
show((await client.POST("/search", { body: { id: "blue.png", k: 2, filter: null } })).data);
const form = new FormData();
form.append("image", new Blob([readFileSync(process.argv[3]!)]), "a.png");
form.append("k", "1");
show((await client.POST("/search", { body: { image: "" }, bodySerializer: () => form })).data);
const both = await client.POST("/search/batch", { body: { searches: [{ id: "blue.png", k: 1 }, { id: "gone" }] } });
const [first, second] = both.data!.results;
show("ok" in first! ? first.ok : undefined);
console.log("problem" in second! ? "Failed" : "Found");
const vectors = await client.POST("/embed", { body: { texts: ["a star"] } });
const vector = vectors.data!.results[0]!;
console.log("ok" in vector ? vector.ok.length : vector.problem);
"""


@pytest.fixture
def service(searcher: Searcher) -> SearchService:
    return fake_service(searcher)


@pytest.fixture
def server(service: SearchService, tmp_path: Path) -> Iterator[str]:
    """A server's URL; its OpenAPI document and a picture are in files."""
    app = create_app(service)
    (tmp_path / "openapi.json").write_text(json.dumps(app.openapi()))
    (tmp_path / "a.png").write_bytes(PLAIN["red.png"])
    with running(app) as url:
        yield url


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(*command: str | Path, cwd: Path) -> None:
    """Install a generator, which does not fit into this environment. Skip the test where there is no registry."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"nothing can be installed here: {done.stderr[-300:]}")


def expected(service: SearchService) -> list[str]:
    def ids(part: Part, k: int) -> str:
        return " ".join(match.image_id for match in service.search(Query(parts=(part,), options={"k": k})).matches)

    blue = Part(image_id="blue.png")
    found = [ids(Part(text="a dark red"), 3), ids(blue, 2), ids(Part(data=PLAIN["red.png"]), 1), ids(blue, 1)]
    return [*found, "Failed", str(service.engine.embedder.identity.dim)]


def test_a_client_of_openapi_python_client(server: str, service: SearchService, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    tools = tmp_path / "venv" / "bin"
    install(tools / "pip", "install", "openapi-python-client==0.29.1", cwd=tmp_path)
    generate = (tools / "openapi-python-client", "generate", "--path", "openapi.json", "--output-path", "made")
    run(*generate, "--meta", "none", cwd=tmp_path)
    (tmp_path / "made").rename(tmp_path / "likeness_client")
    (tmp_path / "use.py").write_text(PYTHON)
    types = (sys.executable, "-m", "mypy", "--python-executable", tools / "python", "use.py", "likeness_client")
    run(*types, cwd=tmp_path)
    assert run(tools / "python", "use.py", server, "a.png", cwd=tmp_path).splitlines() == expected(service)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_a_client_of_openapi_typescript(server: str, service: SearchService, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    install("npm", "install", "openapi-typescript@7", "openapi-fetch@0", "typescript@5", "@types/node@20", cwd=tmp_path)
    run("npx", "openapi-typescript", "openapi.json", "-o", "api.ts", cwd=tmp_path)
    (tmp_path / "use.ts").write_text(TYPESCRIPT)
    options = ("--strict", "--noUncheckedIndexedAccess", "--module", "esnext", "--moduleResolution", "bundler")
    run("npx", "tsc", *options, "--target", "es2022", "--skipLibCheck", "use.ts", cwd=tmp_path)
    assert run("node", "use.js", server, "a.png", cwd=tmp_path).splitlines() == expected(service)
