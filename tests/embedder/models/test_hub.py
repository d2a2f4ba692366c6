"""Checkpoints by hub id, from a small fake hub: downloaded, cached, missing, slow."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

import embedder.models.hub
from embedder.errors import ModelNotFoundError
from embedder.models.hub import fetch_checkpoint
from tests.support.pictures.fetching import answer
from tests.support.scripted_server import Reply, Route, scripted

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same again",
    "onnx/model.onnx": b"and again",
}


def content(body: bytes, name: str = "x") -> Reply:
    return answer(body, ETag=f'"{name}"', X_Repo_Commit=COMMIT)


def refusal(status: int, error: str) -> Reply:
    return answer(b"{}", status=status, X_Error_Code=error)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Just enough of the hub's API to serve the repository `me/tiny`; `me/slow` does not answer in time."""
    models = "/api/models/me"
    info = json.dumps({"id": "me/tiny", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]})
    tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in FILES.items()]
    routes: dict[str, Route] = {
        f"{models}/tiny": content(info.encode()),
        f"{models}/tiny/revision/main": content(info.encode()),
        f"{models}/tiny/tree/{COMMIT}": content(json.dumps(tree).encode()),
        **{f"/me/tiny/resolve/{COMMIT}/{name}": content(data, name) for name, data in FILES.items()},
        f"{models}/tiny/revision/v9": refusal(404, "RevisionNotFound"),
        f"{models}/gated": refusal(403, "GatedRepo"),
        f"{models}/other": refusal(401, "RepoNotFound"),
        f"{models}/slow": Reply(silent_s=30, hang_up=True),
    }
    with scripted() as server:
        server.routes = routes
        settings = {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in settings.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        yield


def test_one_format_of_weights_is_downloaded_to_a_folder_named_after_the_commit() -> None:
    folder = fetch_checkpoint("me/tiny", None)
    assert folder.name == COMMIT
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_the_cache_is_used_if_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, revision: str | None) -> None:
    folder = fetch_checkpoint("me/tiny", "main")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch_checkpoint("me/tiny", revision) == folder


def test_a_failed_download_says_why_although_small_files_are_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    (fetch_checkpoint("me/tiny", None) / "model.safetensors").unlink()

    def fail(model_id: str, revision: str | None) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(embedder.models.hub, "_download", fail)
    with pytest.raises(ModelNotFoundError, match="No space left on device"):
        fetch_checkpoint("me/tiny", None)


@pytest.mark.parametrize(
    ("model", "revision", "setting", "message"),
    [
        ("me/other", None, {}, r"there is no model 'me/other' at http.*, or it is private"),
        ("me/gated", None, {}, r"'me/gated' is gated: accept its terms at http.*/me/gated"),
        ("me/tiny", "v9", {}, r"model 'me/tiny' has no revision 'v9'"),
        ("no model", None, {}, r"'no model' is neither a folder on this machine nor a hub id"),
        (
            *("me/tiny", "v1", {"ENDPOINT": "http://127.0.0.1:9"}),
            r"9 could not be reached .*`hf download me/tiny --revision v1 --local-dir checkpoint` where .* copy that "
            r"folder here, and give `--model \./checkpoint`",
        ),
        (
            *("me/tiny", None, {"HF_HUB_OFFLINE": True}),
            r"HF_HUB_OFFLINE forbids a download. Run `hf download me/tiny --local-dir",
        ),
    ],
)
def test_the_error_for_a_missing_model_says_what_to_do(
    model: str, revision: str | None, setting: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in setting.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    with pytest.raises(ModelNotFoundError, match=message):
        fetch_checkpoint(model, revision)


def test_a_hub_that_does_not_answer_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder.models.hub, "_LOOKUP_TIMEOUT_S", 0.3)
    with pytest.raises(ModelNotFoundError, match=r"could not be reached"):
        fetch_checkpoint("me/slow", None)
