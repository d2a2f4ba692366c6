"""Captions by models of transformers and by a vLLM server."""

import base64
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from index.collection.annotations import annotation_log
from jobs.annotation.predictors import vllm_server
from tests.support.collections.hand_made import add_files, metadata_of, written_rows
from tests.support.command_line import Run
from tests.support.nights.progress import kill_ten_times, pictures_so_far
from tests.support.pictures.sample_images import encode
from tests.support.scripted_server import Player, Reply, ScriptedServer, scripted

COLOURS = {"red.png": (220, 30, 30), "green.png": (30, 200, 40), "blue.png": (20, 10, 240)}
BLOCK = 8


def png(pixels: Any) -> bytes:
    return encode(Image.fromarray(np.asarray(pixels, np.uint8)), "png")


@pytest.fixture
def pictures(collection: Collection, tmp_path: Path) -> Collection:
    """Three pictures of a single colour each."""
    add_files(collection, tmp_path, {name: png(np.full((48, 64, 3), colour)) for name, colour in COLOURS.items()})
    return collection


@dataclass
class Vllm:
    """Answers like vLLM, with a picture's size in bytes as its caption, until it stops after `max_captions`."""

    server: ScriptedServer
    refused: bytes | None = None
    max_captions: int = 1_000_000
    captioned: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.routes |= {"/v1/chat/completions": self.caption, "/v1/models": self.models}

    @property
    def options(self) -> tuple[str, ...]:
        return ("--captioner", "tiny-vlm", "--engine", "vllm", "--url", f"{self.server.url}/v1/")

    def models(self, player: Player) -> None:
        is_up = len(self.captioned) < self.max_captions
        (Reply(document={"data": [{"id": "tiny-vlm"}]}) if is_up else Reply(status=503))(player)

    def caption(self, player: Player) -> None:
        (message,) = player.received.document["messages"]
        head, _, data = message["content"][0]["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        picture = base64.b64decode(data)
        if len(self.captioned) >= self.max_captions:
            Reply(status=503)(player)
        elif picture == self.refused:
            Reply(status=400, document={"error": {"message": "cannot identify image", "code": 400}})(player)
        else:
            self.captioned.append(picture)
            Reply(document={"choices": [{"message": {"content": f" {len(picture)} bytes\n"}}]})(player)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vllm]:
    monkeypatch.setattr(vllm_server, "_RETRY", vllm_server._RETRY.new(backoff_factor=0))
    with scripted() as server:
        yield Vllm(server)


def test_pictures_that_the_server_refuses_are_rejects(
    pictures: Collection, run: Run, vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    vllm.refused = (tmp_path / "red.png").read_bytes()
    command = ("annotate", pictures.location, "--name", "c", *vllm.options, "--prompt", "what is it?")
    done = run(*command, "--max-reject-rate", 0.4)
    assert done.code == 0, done.err
    sizes = {name: f"{(tmp_path / name).stat().st_size} bytes" for name in COLOURS}
    assert {name: row["c"] for name, row in metadata_of(pictures).items()} == {**sizes, "red.png": None}
    assert "CaptionError: HTTP 400: cannot identify image" in run("columns", pictures.location).out
    requests = [request for request in vllm.server.requests if request.method == "POST"]
    assert len(requests) == len(COLOURS)  # the others of the batch were not sent again
    for request in requests:
        assert request.headers["authorization"] == "Bearer s3cret"
        document = request.document
        assert document["messages"][0]["content"][1] == {"type": "text", "text": "what is it?"}
        assert (document["model"], document["temperature"], document["max_tokens"]) == ("tiny-vlm", 0, 64)


def test_another_server_of_the_same_model_continues(pictures: Collection, run: Run, vllm: Vllm) -> None:
    command = ("annotate", pictures.location, "--name", "c")
    busy = [Reply(status=429, headers={"Retry-After": "0"}), Reply(status=502), Reply(hang_up=True)]
    vllm.server.routes["/v1/chat/completions"] = lambda player: (busy.pop() if busy else vllm.caption)(player)
    assert "3 of 3 images annotated" in run(*command, *vllm.options).out  # a busy server is asked again
    with scripted() as other:
        assert "0 of 3 images annotated, 3 were up to date" in run(*command, *Vllm(other).options).out
        assert other.requests == []  # it is not needed if there is nothing to do
        assert "3 of 3 images annotated" in run(*command, *Vllm(other).options, "--prompt", "a haiku").out
    refused = run(*command, "--quality")
    assert (refused.code, "--name c has captions by tiny-vlm, 3 images: " in refused.err) == (2, True), refused


def test_a_job_whose_server_stops_publishes_nothing_and_continues_later(
    pictures: Collection, run: Run, vllm: Vllm
) -> None:
    command = ("annotate", pictures.location, "--name", "c", "--block-size", 1)
    before, vllm.max_captions = pictures.current(), 2
    stopped = run(*command, *vllm.options)
    assert stopped.code == 2
    message = " ".join(stopped.err.split())
    assert "start it with `vllm serve tiny-vlm`" in message
    assert "run the same command again to continue" in message
    assert (pictures.current(), metadata_of(pictures)["red.png"]) == (before, {})
    vllm.max_captions = 1_000_000
    assert run(*command, *vllm.options).code == 0
    assert all(row["c"] for row in metadata_of(pictures).values())
    assert Counter(Counter(vllm.captioned).values()) == {1: 3}


def test_a_missing_server_and_one_of_other_models_are_refused(pictures: Collection, run: Run, vllm: Vllm) -> None:
    command = ("annotate", pictures.location, "--name", "c", "--engine", "vllm", "--captioner", "other", "--url")
    assert "serves tiny-vlm: expected other" in run(*command, f"{vllm.server.url}/v1").err
    nowhere = run(*command, vllm.server.url)
    assert (nowhere.code, "there is no vLLM server at" in nowhere.err) == (2, True)
    assert "another --url, which ends in /v1" in " ".join(nowhere.err.split())
    assert "such as http://localhost:8000/v1" in " ".join(run(*command, "localhost:8000/v1").err.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blip", "llava"])
def test_captions_agree_with_transformers(pictures: Collection, run: Run, tmp_path: Path, kind: str) -> None:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from tests.support.pictures import tiny_checkpoints

    folder = tmp_path / kind
    getattr(tiny_checkpoints, f"save_{kind}")(folder)
    kinds: Any = (AutoProcessor, AutoModelForImageTextToText)
    processor, model = (each.from_pretrained(folder) for each in kinds)
    for name, prompt in {"plain": None, "prompted": "the star of"}.items():
        command = ("annotate", pictures.location, "--name", name, "--captioner", folder, "--device", "cpu")
        done = run(*command, *(("--prompt", prompt) if prompt else ()))
        assert done.code == 0, done.err
        text = prompt
        if kind == "llava":
            text = f"user <image> {prompt or 'Describe this picture in one sentence.'} bot "
        metadata = metadata_of(pictures)
        for image_id, colour in COLOURS.items():
            picture = Image.new("RGB", (32, 32), colour)
            inputs = processor(images=picture, text=text, return_tensors="pt")
            with torch.inference_mode():
                tokens = model.generate(**inputs, do_sample=False, max_new_tokens=64)[0]
            skipped = len(inputs["input_ids"][0]) - (kind == "blip") if text else 0  # BLIP drops the text's end
            assert metadata[image_id][name] == processor.decode(tokens[skipped:], skip_special_tokens=True).strip()
        assert len({row[name] for row in metadata.values()}) == len(COLOURS)


@pytest.mark.slow
def test_another_prompt_or_file_of_the_checkpoint_captions_all_images_again(
    pictures: Collection, run: Run, tmp_path: Path
) -> None:
    from tests.support.pictures.tiny_checkpoints import save_blip

    save_blip(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    command = ("annotate", pictures.location, "--name", "c", "--captioner")
    assert "3 of 3 images annotated" in run(*command, tmp_path / "a").out
    assert "0 of 3 images annotated, 3 were up to date" in run(*command, tmp_path / "b").out
    settings = tmp_path / "b" / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "repetition_penalty": 2.0}))
    assert "3 of 3 images annotated" in run(*command, tmp_path / "b").out
    assert "3 of 3 images annotated" in run(*command, tmp_path / "b", "--prompt", "a star").out
    refused = run(*command, DEMO_MODEL)
    assert "expected a model for captions, got CLIPModel" in refused.err


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_killed_ten_times_captions_every_image_once(collection: Collection, tmp_path: Path) -> None:
    from tests.support.nights.captions_driver import UNLUCKY
    from tests.support.pictures.tiny_checkpoints import save_llava

    save_llava(tmp_path / "llava")
    rng = np.random.default_rng(20261123)
    files = {
        f"{number:03}.png": png(rng.integers(0, 256, (4, 4, 3)).repeat(10, 0).repeat(10, 1)) for number in range(160)
    }
    files |= {"100.png": png(np.full((40, 40, 3), UNLUCKY)), "broken.png": b"\x89PNG\r\n\x1a\n and no more"}
    add_files(collection, tmp_path, files)
    log = tmp_path / "log"
    options = ("--name", "c", "--captioner", tmp_path / "llava", "--block-size", BLOCK, "--on", "local")
    driver = (sys.executable, "-m", "tests.support.nights.captions_driver", log)
    command = [*driver, "annotate", collection.location, *options]
    kill_ten_times(command, lambda: pictures_so_far(log), steps=2 * BLOCK)
    annotations = annotation_log(collection, "c")
    (run,) = annotations.runs()
    written = (
        written_rows(annotations, run, annotations.files_of(run)).read(["image_id", "c", "error_message"]).to_pylist()
    )
    assert Counter(row["image_id"] for row in written) == Counter(files.keys())
    assert {row["image_id"] for row in written if row["error_message"]} == {"100.png", "broken.png"}
    captions = {str(row["image_id"]): row["c"] for row in written}
    assert {key for key, caption in captions.items() if caption is None} == {"100.png", "broken.png"}
    assert len({*captions.values()}) > 20
    assert {name: row["c"] for name, row in metadata_of(collection).items()} == captions
    lines = pictures_so_far(log)
    assert len(files) - 2 <= lines <= len(files) - 2 + 10 * BLOCK, "a crash cost more than one block"
