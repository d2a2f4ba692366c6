"""Makes the recipe for the predictor that an annotation names."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from embedder.models.checkpoint import Checkpoint
from embedder.python_class import PythonClass
from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from jobs.annotation.predictor import NEEDS, Batch, Columns, Predictor, Recipe, checkpoint_recipe
from jobs.annotation.predictors.captions import captioner_recipe
from jobs.annotation.predictors.clusters import clusters_recipe
from jobs.annotation.predictors.examples import examples_recipe
from jobs.annotation.predictors.heads import head_recipe
from jobs.annotation.predictors.labels import labels_recipe, text_embedding
from jobs.annotation.predictors.ocr import ocr_recipe
from jobs.annotation_spec import AnnotationSpec
from jobs.embedding.model_source import Load
from jobs.errors import UsageError
from jobs.spec import Resources

_QUALITY = "jobs.annotation.predictors.quality:Quality"


def recipe_of(
    spec: AnnotationSpec, collection: Collection, model: ModelRecord, resources: Resources, load: Load
) -> Recipe:
    """The recipe for an annotation of a collection with this model, which it may `load`.

    Raises UsageError for an invalid predictor, ModelError for one that cannot be loaded.
    """
    embed = text_embedding(spec, model, load)
    match spec.kind:
        case "quality":
            return replace(class_recipe(_QUALITY, model), id="quality")
        case "predictor":
            return class_recipe(str(spec.predictor), model)
        case "classifier":
            return _classifier_recipe(str(spec.classifier), spec.top_k, resources)
        case "captioner":
            return captioner_recipe(spec, resources)
        case "ocr":
            return ocr_recipe()
        case "clusters":
            return clusters_recipe(spec, model, embed)
        case "match":
            from jobs.annotation.predictors.match import match_recipe  # late: faiss takes a second

            return match_recipe(str(spec.match), spec.k, collection, model)
        case "examples":
            return examples_recipe(spec, model)
        case "head":
            return head_recipe(spec, model)
        case "labels":
            return labels_recipe(spec, model, embed)
        case "uniqueness" | "outlier" as computed:
            raise ValueError(f"expected an annotation with a predictor, got {computed}")


def class_recipe(name: str, model: ModelRecord) -> Recipe:
    """The recipe for a class named `module:Class`, constructed once per worker process, without arguments.

    Its attribute `needs` is image, embedding or file. Pictures are squashed to `side` × `side`; with `shortest_edge`
    their middle is cut out instead. The fingerprint covers `version`, or the module's source if there is none, and the
    `model` if the class gets vectors of it.
    """
    source = PythonClass.in_working_directory(name)
    needs: Any = getattr(source.find(), "needs", None)
    if needs not in NEEDS:
        raise UsageError(f"{name} has needs = {needs!r}: expected one of {', '.join(NEEDS)}")
    crop = source.crop()
    fingerprint = source.fingerprint((needs, model.fingerprint if needs == "embedding" else crop))
    return Recipe(id=name, fingerprint=fingerprint, needs=needs, make=source.construct, crop=crop)


def _classifier_recipe(model: str, top_k: int, resources: Resources) -> Recipe:
    checkpoint = Checkpoint.find(model, task="image classification")
    parts = [checkpoint.classifier_fingerprint, top_k]
    return checkpoint_recipe("classes", checkpoint, parts, partial(_classifier, model, top_k, resources.device))


def _classifier(model: str, top_k: int, device: str | None) -> Predictor:
    from embedder.models.classifier import ImageClassifier  # torch and transformers take seconds

    classifier = ImageClassifier.load(model, device=device)

    def predict(batch: Batch) -> Columns:
        classes, confidences = classifier.classify(batch["image"], top_k)
        scores = confidences.astype(np.float64).round(4)
        return {
            "": [best[0] for best in classes],
            "score": scores[:, 0],
            "classes": classes,
            "scores": scores,
        }

    return predict
