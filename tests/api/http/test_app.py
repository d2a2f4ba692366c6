"""The HTTP interface: answers, pictures, and every error as a problem document."""

import gzip
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api.http.app import create_app
from api.local import running
from api.problems import PROBLEMS, Problem
from api.search.service import SearchService
from api.settings import RequestLimits
from embedder.errors import UnsupportedInputError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from index.search import Searcher
from tests.support.collections.small_collection import COLOURS, PLAIN, fake_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures import sample_images
from tests.support.pictures.fetching import answer, redirect
from tests.support.scripted_server import Reply, scripted

ODD = "a/b c/ü 100%.png"
PICTURES = {**PLAIN, ODD: png((90, 20, 200)), **{f"{grey}.png": png((grey,) * 3) for grey in range(0, 210, 30)}}
LIMITS = RequestLimits(max_upload_bytes=300_000, max_json_bytes=65_536, max_k=1_000)


NAMES = {"pictures.example": "127.0.0.1", "inside.example": "10.0.0.7"}


def resolve(host: str, port: int) -> list[str]:
    """The addresses of known names; numeric addresses stay as they are, as with getaddrinfo."""
    if host.endswith(".example") and host not in NAMES:
        raise socket.gaierror(socket.EAI_NONAME, "no such host")
    return [NAMES.get(host, host.strip("[]"))]


@pytest.fixture(scope="module")
def pictures_at() -> Iterator[str]:
    """A web server of pictures, some of which misbehave."""
    with scripted() as host:
        host.routes = {
            "/red.png": answer(png(COLOURS["red.png"])),
            "/page": answer(b"<html>", Content_Type="text/html"),
            "/fake.png": answer(b"not a picture"),
            "/large.png": answer(bytes(LIMITS.max_upload_bytes + 1)),
            "/broken": answer(b"", status=500),
            "/to-metadata": redirect("http://169.254.169.254/latest/meta-data"),
            "/to-inside": redirect("http://inside.example/x.png"),
            "/to-file": redirect("file:///etc/passwd"),
            "/to-loop": redirect("/to-loop"),
            "/slow": Reply(silent_s=1.5, hang_up=True),
        }
        yield f"http://pictures.example:{host.server_port}"


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    return make_collection(tmp_path_factory.mktemp("collection"), PICTURES, FakeEmbedder())


@pytest.fixture(scope="module")
def service(searcher: Searcher, pictures_at: str) -> SearchService:
    files = {f"memory:{name}": png(colour, (400, 200)) for name, colour in COLOURS.items()}
    files[f"memory:{ODD}"] = PICTURES[ODD]
    policy = replace(
        FetchPolicy.for_untrusted_urls(allowed_hosts=[pictures_at.removeprefix("http://")]),
        max_bytes=LIMITS.max_upload_bytes,
        timeout_s=1.0,
        retries=0,
    )
    return fake_service(searcher, queries=Fetcher(policy, resolve=resolve), pictures=files)


@pytest.fixture(scope="module")
def client(service: SearchService) -> Iterator[TestClient]:
    with TestClient(create_app(service, limits=LIMITS)) as client:
        yield client


def assert_problem(response: Any, slug: str, *, detail: str, **members: Any) -> dict[str, Any]:
    """Assert that the response is a problem document of this type, with this text in its detail and these members."""
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:likeness:problem:{slug}", document
    assert document["status"] == response.status_code == PROBLEMS[slug].status
    assert document["title"] == PROBLEMS[slug].title
    assert detail in document["detail"]
    assert {name: document.get(name) for name in members} == members
    return document


BOMB = sample_images.png(20_000, 10_000, 8, 2, bytes(300))
"""A few hundred bytes whose header declares 200 million pixels."""


# Answers


def test_search_by_url(client: TestClient, pictures_at: str) -> None:
    answer = client.post("/search", json={"url": f"{pictures_at}/red.png", "k": 2}).json()
    first = answer["matches"][0]
    assert len(answer["matches"]) == 2
    assert first["image_id"] == "red.png"
    assert first["score"] == pytest.approx(1.0, abs=1e-6)
    assert first["uri"] == "memory:red.png"
    assert first["picture"] == "/picture?id=red.png"
    assert first["metadata"] == {"label": "red", "weight": None}
    assert answer["index"] == {"version": "000001", "ntotal": len(PICTURES)}
    identity = FakeEmbedder().identity
    assert answer["model"] == {"id": "fake", "revision": None, "fingerprint": identity.fingerprint, "dim": 16}
    assert list(answer["timing_ms"]) == ["fetch", "decode", "embed", "search", "total"]
    assert all(answer["timing_ms"].values())


# Requests that are not valid


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"text": "star"'])
def test_a_body_that_is_not_json(client: TestClient, content: bytes) -> None:
    response = client.post("/search", content=content, headers={"content-type": "application/json"})
    expected = "expected a JSON object: " if content else "expected a JSON object, got an empty body"
    assert_problem(response, "malformed-body", detail=expected)


def test_a_form_that_cannot_be_read(client: TestClient) -> None:
    response = client.post("/search", files=[("image", ("a.png", b"x")), ("image", ("b.png", b"x"))])
    assert_problem(response, "malformed-body", detail="Too many files")
    response = client.post("/search", content=b"--x", headers={"content-type": "multipart/form-data"})
    assert_problem(response, "malformed-body", detail="boundary")


FIELDS = {"k": b"2", "filter": b'{"label": "blue"}'}
FORM = b"".join(
    b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % each
    for each in (
        (b"image", b'; filename="a.png"', png(COLOURS["blue.png"])),
        *((name.encode(), b"", value) for name, value in FIELDS.items()),
    )
)


@pytest.mark.parametrize("end", [b"--b--\r\n", b"--b--", b"--b--\r\nan epilogue of --b"])
def test_a_form_is_read_up_to_its_closing_boundary(client: TestClient, end: bytes) -> None:
    media_type = {"content-type": "multipart/form-data; boundary=b"}
    answer = client.post("/search", content=FORM + end, headers=media_type).json()
    assert [match["image_id"] for match in answer["matches"]] == ["blue.png"]
    for length in range(len(FORM) - len(b'{"label": "blue"}\r\n') - 60, len(FORM), 7):
        response = client.post("/search", content=FORM[:length], headers=media_type)
        assert_problem(response, "malformed-body", detail="cut off")


@pytest.mark.parametrize("media_type", ["text/plain", "video/mp4", "application/x-www-form-urlencoded", ""])
def test_other_content_types_and_compressed_bodies_are_refused(client: TestClient, media_type: str) -> None:
    response = client.post("/search", content=b"x", headers={"content-type": media_type})
    assert_problem(response, "unsupported-media-type", detail=f'"{media_type}"' if media_type else "no content type")
    compressed = {"content-type": "application/json", "content-encoding": "gzip"}
    response = client.post("/search", content=gzip.compress(b'{"text": "star"}'), headers=compressed)
    assert_problem(response, "unsupported-media-type", detail='expected a body without Content-Encoding, got "gzip"')


def test_an_empty_form_field_counts_as_absent(client: TestClient) -> None:
    upload = {"image": ("blue.png", png(COLOURS["blue.png"]), "image/png")}
    blank = dict.fromkeys(("k", "offset", "min_score", "filter", "distinct", "fields"), "")
    answer = client.post("/search", files=upload, data=blank).json()
    assert len(answer["matches"]) == 10


@pytest.mark.parametrize("path", ["/", "/docs", "/index", "/readyz", "/image?id=red.png", "/picture?id=red.png"])
def test_head_answers_with_the_headers_of_get(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    del head.headers["x-request-id"], get.headers["x-request-id"]
    assert head.headers == get.headers


def test_unknown_paths_and_methods(client: TestClient) -> None:
    assert client.head("/embed").status_code == 405
    assert_problem(client.get("/nowhere"), "not-found", detail='"/nowhere"')
    assert_problem(client.post("/images", follow_redirects=False), "not-found", detail='"/images"')
    response = client.get("/embed")
    assert_problem(response, "method-not-allowed", detail="expected POST, got GET")
    assert response.headers["allow"] == "POST"
    assert client.put("/search").headers["allow"] == "GET, POST"


# Sizes


def test_an_upload_over_the_limit_is_refused_before_its_end(service: SearchService) -> None:
    """Without a Content-Length the server must stop reading long before the end."""
    form = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    chunks = [b"%x\r\n%b\r\n" % (len(data), data) for data in (form, *[bytes(65_536)] * 6)]
    head = b"Transfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n"
    answer = answer_to(head, *chunks, service=service, limits=LIMITS)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"urn:likeness:problem:too-large" in answer


def test_a_body_that_does_not_arrive_times_out(service: SearchService) -> None:
    head = b"Content-Length: 20\r\nContent-Type: application/json\r\n\r\n{"
    answer = answer_to(head, service=service, limits=replace(LIMITS, body_timeout_s=0.2))
    assert answer.startswith(b"HTTP/1.1 408 ")


def answer_to(*parts: bytes, service: SearchService, limits: RequestLimits) -> bytes:
    """The answer to a request to /search of which only these parts are sent."""
    with running(create_app(service, limits=limits)) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as caller:
            for part in (b"POST /search HTTP/1.1\r\nHost: x\r\n", *parts):
                caller.sendall(part)
            return caller.recv(65_536)


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"files": {"image": ("a.png", bytes(LIMITS.max_upload_bytes + 1))}}, "image of at most 300,000 bytes"),
        ({"json": {"text": "x" * 70_000}}, "JSON body of at most 65,536"),
    ],
)
def test_a_body_a_little_over_the_limit_is_too_large(client: TestClient, body: dict[str, Any], detail: str) -> None:
    assert_problem(client.post("/search", **body), "too-large", detail=detail)


# Pictures that cannot be used


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<html></html>", "not_an_image"),
        (b"%PDF-1.7", "not_an_image"),
        (png((1, 2, 3))[:60], "truncated"),
        (BOMB, "too_many_pixels"),
    ],
)
def test_an_unusable_upload_is_refused_with_a_reason(client: TestClient, data: bytes, reason: str) -> None:
    response = client.post("/search", files={"image": ("a.png", data)})
    assert_problem(response, "unusable-image", detail="", reason=reason, stage="decode", retryable=False)


@pytest.mark.parametrize(
    ("body", "slug", "field"),
    [
        ({"image": "aGVsbG8="}, "unusable-image", "image"),
        ({"url": "file:///etc/passwd"}, "forbidden-scheme", "url"),
        ({"queries": [{"text": "star"}, {"image": "aGVsbG8="}]}, "unusable-image", "queries.1.image"),
        ({"queries": [{"id": "red.png"}, {"url": "{host}/page"}]}, "unusable-image", "queries.1.url"),
        ({"queries": [{"url": "{host}/red.png"}, {"url": "{host}/none"}]}, "url-not-usable", "queries.1.url"),
    ],
)
def test_a_rejected_picture_is_named_by_its_field(
    client: TestClient, pictures_at: str, body: dict[str, Any], slug: str, field: str
) -> None:
    search = json.loads(json.dumps(body).replace("{host}", pictures_at))
    assert_problem(client.post("/search", json=search), slug, detail="", field=field)
    (result,) = client.post("/search/batch", json={"searches": [search]}).json()["results"]
    assert result["problem"]["field"] == field


@pytest.mark.parametrize(
    ("url", "slug", "reason"),
    [
        ("{host}/missing.png", "url-not-usable", "http_404"),
        ("{host}/to-loop", "url-not-usable", "too_many_redirects"),
        ("{host}/large.png", "url-not-usable", "too_many_bytes"),
        ("{host}/page", "unusable-image", "not_an_image"),
        ("{host}/fake.png", "unusable-image", "not_an_image"),
        ("{host}/broken", "url-unreachable", "http_500"),
        ("{host}/slow", "url-timeout", "timeout"),
        ("{host}/to-metadata", "forbidden-address", "forbidden_address"),
        ("{host}/to-inside", "forbidden-address", "forbidden_address"),
        ("{host}/to-file", "forbidden-scheme", "forbidden_scheme"),
        ("http://127.0.0.1/x.png", "forbidden-address", "forbidden_address"),
        ("http://inside.example/x.png", "forbidden-address", "forbidden_address"),
        ("http://1.1.1.1:22/", "forbidden-address", "forbidden_port"),
        ("file:///etc/passwd", "forbidden-scheme", "forbidden_scheme"),
        ("http://user:secret@1.1.1.1/x.png", "bad-url", "forbidden_userinfo"),
        ("http://", "bad-url", "bad_uri"),
        ("http://nowhere.example/x.png", "url-unreachable", "unknown_host"),
    ],
)
def test_a_url_without_a_usable_picture_is_refused_with_a_reason(
    client: TestClient, pictures_at: str, url: str, slug: str, reason: str
) -> None:
    response = client.post("/search", json={"url": url.replace("{host}", pictures_at)})
    stage = "decode" if url.endswith("fake.png") else "fetch"
    assert_problem(response, slug, detail="", reason=reason, stage=stage)
    assert "secret" not in response.text


# Images and their pictures


def test_a_picture_is_sent_unchanged_and_never_as_a_page(client: TestClient) -> None:
    row = client.get("/image", params={"id": ODD}).json()
    assert (row["image_id"], row["width"], row["height"], row["format"]) == (ODD, 48, 40, "png")
    assert client.get(row["picture"]).content == PICTURES[ODD]
    assert (row["metadata"], row["picture"]) == ({"label": ODD[:-4], "weight": None}, f"/picture?id={quote(ODD)}")
    response = client.get("/picture?id=red.png")
    assert response.content == png(COLOURS["red.png"], (400, 200))
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize(("size", "expected"), [(16, (16, 8)), (100, (100, 50)), (1024, (400, 200))])
def test_a_thumbnail_fits_into_its_size(client: TestClient, size: int, expected: tuple[int, int]) -> None:
    response = client.get(f"/picture?id=red.png&size={size}")
    assert response.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(response.content)).size == expected


@pytest.mark.parametrize("path", ["/image?id=none.png", "/picture?id=none.png", "/image?id=", "/image?id=../x"])
def test_an_unknown_image(client: TestClient, path: str) -> None:
    assert_problem(client.get(path), "image-not-found", detail="index version 000001 has no image")


def test_a_picture_that_is_gone(client: TestClient) -> None:
    gone = client.get("/picture?id=0.png")
    assert_problem(gone, "picture-not-found", detail="the file of '0.png' is no longer there")


# States


def test_health_and_readiness(searcher: Searcher) -> None:
    app = create_app(fake_service(searcher))
    before = TestClient(app)
    assert before.get("/healthz").json() == {"status": "up"}
    assert_problem(before.get("/readyz"), "not-ready", detail="the server cannot answer queries now")
    with TestClient(app) as started:
        assert started.get("/readyz").json() == {"status": "ready", "index": "000001"}


def test_the_index_shows_its_measurements(client: TestClient, service: SearchService) -> None:
    found = client.get("/index").json()
    manifest = service.engine.searcher.manifest
    assert (found["version"], found["ntotal"], found["kind"]) == ("000001", len(PICTURES), "Flat")
    assert found["recall"] == {"1": 1.0, "10": 1.0, "100": 1.0}
    assert found["latency_ms"] == manifest.latency_ms
    assert found["queries_per_second"] == manifest.queries_per_second > 0
    assert datetime.fromisoformat(found["created_at"]) == manifest.created_at
    assert (found["columns"]["label"], found["columns"]["weight"]) == ("string", "double")
    assert "embedding" not in found["columns"]
    assert found["max_k"] == LIMITS.max_k


def test_facets_count_images_that_pass_the_filter(client: TestClient) -> None:
    found = client.get("/facets").json()
    assert (found["index"]["version"], found["rows"]) == ("000001", len(PICTURES))
    assert found["columns"]["format"] == {"values": [{"value": "png", "count": len(PICTURES)}], "others": 0}
    narrowed = client.get("/facets", params={"filter": '{"image_id": {"$prefix": "r"}}'}).json()
    assert narrowed["columns"]["format"]["values"] == [{"value": "png", "count": 1}]


class BrokenEmbedder(FakeEmbedder):
    def embed_images(self, pixels: Any) -> Any:
        raise RuntimeError("secret: /root/models/weights is corrupt")

    def embed_texts(self, texts: Any) -> Any:
        raise UnsupportedInputError("model 'fake' has no text side")


def test_a_defect_is_logged_but_not_disclosed(searcher: Searcher, caplog: pytest.LogCaptureFixture) -> None:
    service = fake_service(searcher, embedder=BrokenEmbedder())
    with TestClient(create_app(service)) as client:
        assert client.get("/healthz").status_code == 200
        assert_problem(client.get("/readyz"), "not-ready", detail="log")
        caplog.clear()
        response = client.post("/search", files={"image": ("a.png", png((1, 2, 3)))})
        assert_problem(response, "internal", detail="its log says why")
        assert "secret" not in response.text
        assert "weights is corrupt" in caplog.text
        response = client.post("/search", json={"text": "star", "words": "off"})
        assert_problem(response, "text-not-supported", detail="no text side")


def test_documented_examples_work_unchanged(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    statuses = {
        name: client.post(path, json=example["value"]).status_code
        for path in ("/search", "/search/batch", "/embed")
        for name, example in paths[path]["post"]["requestBody"]["content"]["application/json"]["examples"].items()
    }
    assert {name for name, status in statuses.items() if status != 200} == {"by URL", "more like an image of the index"}
    assert len(statuses) == 9


def test_openapi_lists_every_problem_with_an_example(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    rows = [f"| `{kind.type}` | {kind.status} | {kind.__doc__} |" for kind in Problem.__subclasses__()]
    assert document["info"]["description"].splitlines()[-len(rows) - 2 : -2] == rows
    assert list(PROBLEMS.values()) == Problem.__subclasses__()  # no two have one slug
    search = document["paths"]["/search"]["post"]
    assert set(search["requestBody"]["content"]) == {"application/json", "image/*", "multipart/form-data"}
    types = {
        example["value"]["type"]
        for answer in search["responses"].values()
        for example in answer["content"].get("application/problem+json", {}).get("examples", {}).values()
    }
    assert {"urn:likeness:problem:forbidden-address", "urn:likeness:problem:too-large"} <= types
    references = {part.split('"')[0] for part in client.get("/openapi.json").text.split("#/components/schemas/")[1:]}
    assert references <= set(document["components"]["schemas"])
    assert client.get("/docs").status_code == 200
    assert "contentMediaType" not in client.get("/openapi.json").text  # Swagger UI would ask for a file
