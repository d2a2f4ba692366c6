"""Captions: a text for each image, by an image-to-text model of transformers or a vLLM server."""

from __future__ import annotations

from functools import partial

from embedder.models.checkpoint import Checkpoint
from jobs.annotation.predictor import Predictor, Recipe, checkpoint_recipe
from jobs.annotation.predictors.vllm_server import VllmServer
from jobs.annotation_spec import AnnotationSpec
from jobs.spec import Resources
from jobs.values import fingerprint_of

_KIND = "captions"
_QUESTION = "Describe this picture in one sentence."
"""For chat models, if there is no prompt."""
_MAX_TOKENS = 64


def captioner_recipe(spec: AnnotationSpec, resources: Resources) -> Recipe:
    """The recipe for captions. Raises ModelError for a checkpoint of another kind."""
    model = str(spec.captioner)
    if spec.url:
        settings = (model, spec.prompt or _QUESTION, _MAX_TOKENS)
        # The fingerprint leaves out the address, so that another server of the same model can continue.
        return Recipe(
            id=f"{_KIND} by {model}",
            fingerprint=fingerprint_of(["vllm", *settings]),
            needs="file",
            make=partial(VllmServer.connect, spec.url.rstrip("/"), *settings),
        )
    checkpoint = Checkpoint.find(model, task="captions")
    parts = [checkpoint.captioner_fingerprint, spec.prompt, _QUESTION, _MAX_TOKENS]
    return checkpoint_recipe(_KIND, checkpoint, parts, partial(_captioner, model, spec.prompt, resources.device))


def _captioner(model: str, prompt: str | None, device: str | None) -> Predictor:
    from embedder.models.captioner import ImageCaptioner  # torch and transformers take seconds

    captioner = ImageCaptioner.load(model, prompt=prompt, question=_QUESTION, device=device)
    return lambda batch: {"": captioner.caption(batch["image"], max_tokens=_MAX_TOKENS)}
