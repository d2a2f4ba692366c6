"""Which predictor an annotation names: labels, or a class that is constructed once in each process that runs it."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from index.collection.records import ModelRecord
from jobs.annotation.captions import captioner_recipe
from jobs.annotation.labels import LabelTexts
from jobs.annotation.predictor import NEEDS, Batch, Columns, Predictor, Recipe, checkpoint_recipe
from jobs.errors import UsageError
from jobs.spec import AnnotationSpec, Resources

_QUALITY = "jobs.annotation.quality:Quality"


def recipe_of(spec: AnnotationSpec, model: ModelRecord, resources: Resources) -> Recipe:
    """The predictor of an annotation, for a collection with this model. UsageError for one that makes no sense."""
    if spec.quality:
        return replace(class_recipe(_QUALITY), id="quality")
    if spec.predictor:
        return class_recipe(spec.predictor)
    if spec.classifier:
        return _classifier_recipe(spec.classifier, spec.top_k, resources)
    if spec.captioner:
        return captioner_recipe(spec, resources)
    texts = LabelTexts(
        labels=spec.labels, template=spec.template, none_below=spec.none_below, model=model, device=resources.device
    )
    return texts.recipe


def class_recipe(name: str) -> Recipe:
    """Of `module:Class`, importable here or from the working directory, and constructed without arguments.

    The class says what it `needs`: image, embedding or file; for images also the `side` of the square, and with
    `shortest_edge` that the middle is cut out and not the whole squashed. Its fingerprint is that of its `version`; if
    it has none, of its module's source.
    """
    folder = str(Path.cwd())
    made = _find(name, folder)
    needs: Any = getattr(made, "needs", None)
    if needs not in NEEDS:
        raise UsageError(f"{name} has needs = {needs!r}: expected one of {', '.join(NEEDS)}")
    version = getattr(made, "version", None)
    source = getattr(sys.modules[made.__module__], "__file__", None)
    if version is None and not source:
        raise UsageError(f"{name} has no source file: give the class a version, which changes with what it returns")
    contents = str(version).encode() if version is not None else Path(str(source)).read_bytes()
    try:
        crop = CropSpec(side=getattr(made, "side", 224), shortest_edge=getattr(made, "shortest_edge", None))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from error
    return Recipe(
        id=name,
        fingerprint=hashlib.sha256(name.encode() + b"\0" + repr((needs, crop)).encode() + b"\0" + contents).hexdigest(),
        needs=needs,
        make=partial(_construct, name, folder),
        crop=crop,
    )


def _construct(name: str, folder: str, _: Mapping[str, float]) -> Predictor:
    made = _find(name, folder)
    try:
        predictor: Predictor = made()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the predictor {name} cannot be constructed ({type(error).__name__}: {error}): expected a class that "
            "takes no arguments"
        ) from error
    return predictor


def _find(name: str, folder: str) -> Any:
    if folder not in sys.path:
        sys.path.append(folder)
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the module's own code runs
        raise UsageError(
            f"the predictor {name} cannot be imported ({type(error).__name__}: {error}): expected module:Class"
        ) from error


def _classifier_recipe(model: str, top_k: int, resources: Resources) -> Recipe:
    checkpoint = Checkpoint.find(model, task="image classification")
    about = [checkpoint.classifier_fingerprint, top_k]
    return checkpoint_recipe(checkpoint, about, partial(_classifier, model, top_k, resources.device))


def _classifier(model: str, top_k: int, device: str | None, _: Mapping[str, float]) -> Predictor:
    from embedder.models.classifier import ImageClassifier  # torch and transformers take seconds

    classifier = ImageClassifier.load(model, device=device)

    def predict(batch: Batch) -> Columns:
        classes, confidences = classifier.classify(batch["image"], top_k)
        scores = confidences.astype(np.float64).round(4)
        return {
            "": [each[0] for each in classes],
            "score": scores[:, 0],
            "classes": classes,
            "scores": scores,
        }

    return predict
