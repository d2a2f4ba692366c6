"""Checkpoints by hub id, from a small hub of our own: downloaded, cached, missing, slow."""

import json
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import huggingface_hub.constants
import pytest

import embedder.models.hub
from embedder.errors import ModelNotFoundError
from embedder.models.hub import fetch_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same again",
    "onnx/model.onnx": b"and again",
}


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub's API to serve the repository `me/tiny`; `me/slow` does not answer in time."""

    released = Event()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/me/slow"):
            self.released.wait(30)
        if path in ("/api/models/me/tiny", "/api/models/me/tiny/revision/main"):
            info = {"id": "me/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
            self.answer(json.dumps(info).encode())
        elif path.startswith(f"/api/models/me/tiny/tree/{COMMIT}"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in FILES.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(f"/me/tiny/resolve/{COMMIT}/"):
            self.answer(FILES[path.removeprefix(f"/me/tiny/resolve/{COMMIT}/")], etag=path.rsplit("/")[-1])
        elif path.startswith("/api/models/me/tiny/revision/"):
            self.answer(b"{}", status=404, error="RevisionNotFound")
        elif path.startswith("/api/models/me/gated"):
            self.answer(b"{}", status=403, error="GatedRepo")
        else:
            self.answer(b"{}", status=401, error="RepoNotFound")

    def answer(self, body: bytes, status: int = 200, error: str = "", etag: str = "x") -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            "ETag": f'"{etag}"',
            "X-Repo-Commit": COMMIT,
            "X-Error-Code": error,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_format_of_weights_is_downloaded_to_a_folder_named_after_the_commit() -> None:
    folder = fetch_checkpoint("me/tiny", None)

    assert folder.name == COMMIT
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_the_cache_answers_when_the_hub_does_not(monkeypatch: pytest.MonkeyPatch, revision: str | None) -> None:
    folder = fetch_checkpoint("me/tiny", "main")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")

    assert fetch_checkpoint("me/tiny", revision) == folder


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("me/other", None, r"there is no model 'me/other' at http.*, or it is private"),
        ("me/gated", None, r"'me/gated' is gated: accept its terms at http.*/me/gated"),
        ("me/tiny", "v9", r"model 'me/tiny' has no revision 'v9'"),
        ("no model", None, r"'no model' is neither a folder on this machine nor a hub id"),
    ],
)
def test_a_model_that_is_not_there_says_what_to_do(model: str, revision: str | None, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        fetch_checkpoint(model, revision)


def test_a_hub_out_of_reach_is_told_with_the_command_to_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    started = time.monotonic()

    with pytest.raises(ModelNotFoundError, match=r"9 could not be reached") as caught:
        fetch_checkpoint("me/tiny", "v1")

    told = re.findall(r"`hf download (.*?)` where .* copy that folder here, and give `--model (.*)`", str(caught.value))
    assert told == [("me/tiny --revision v1 --local-dir checkpoint", "./checkpoint")]

    assert time.monotonic() - started < 5


def test_a_forbidden_download_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelNotFoundError, match=r"HF_HUB_OFFLINE forbids a download. Run `hf download me/tiny --"):
        fetch_checkpoint("me/tiny", None)


def test_a_hub_that_does_not_answer_is_given_up_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder.models.hub, "_LOOKUP_TIMEOUT_S", 0.3)
    started = time.monotonic()
    try:
        with pytest.raises(ModelNotFoundError, match=r"could not be reached"):
            fetch_checkpoint("me/slow", None)
        assert time.monotonic() - started < 5
    finally:
        Hub.released.set()
