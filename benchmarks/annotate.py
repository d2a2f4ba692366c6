"""What annotations and imported vectors cost: `python -m benchmarks.annotate [--quick]`.

Measures labels and another column for a million stored vectors, annotations after 1% of the pictures has changed, an
import of vectors, a classifier against its bare forward pass, and the accuracy of a classifier built from the demo
model.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from rich.console import Console

from benchmarks.common.clustered import BLOCK, DIM, Clustered, index_rows
from benchmarks.common.collections import draw_pictures
from benchmarks.common.process import Command, bytes_read, in_new_process, likeness, peak_rss, seconds_of
from benchmarks.common.report import Report, run
from benchmarks.common.rows import with_vectors
from benchmarks.common.small_pictures import draw, path_of
from benchmarks.embed.rates import photographs, rate, steady_rate
from benchmarks.models.random_models import save_demo_classifier, save_resnet50
from embedder.images.decode import decode_image
from embedder.models.checkpoint import DEMO_MODEL, Checkpoint
from embedder.models.classifier import ImageClassifier
from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.annotations import annotation_log
from index.collection.layout import VECTORS
from index.collection.records.model_record import ModelRecord
from index.collection.rows import EMBEDDING, embedding_type, vectors_of
from index.search import Searcher
from jobs.annotation.annotate import Annotate
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.labels import Labels
from jobs.annotation.publish import publish
from jobs.annotation.recipes import recipe_of
from jobs.annotation_spec import AnnotationSpec
from jobs.demo.drawing import SHAPES
from jobs.embedding.model_source import model_record
from jobs.exchange.import_vectors import VectorImport
from jobs.spec import Resources

LABELS = 100
_TRAINED = 6_000  # pictures that the classifier built from the demo model is trained on
_FRESH_SEED = 77  # of pictures that no model was trained on
_QUIET = Console(quiet=True)
_HERE = Resources(on="local")


class Hashed(Clustered):
    """Clustered vectors whose rows have a content hash, as annotations need."""

    def table(self, start: int, stop: int, dim: int = DIM) -> pa.Table:
        table = super().table(start, stop, dim)
        return table.append_column("content_hash", pc.utf8_lpad(table["image_id"], 64, "0"))


def label(location: str) -> dict[str, float]:
    """Seconds of `annotate` with labels of random text vectors, to the live version, and its peak memory."""
    texts = Clustered(seed=1).queries(LABELS)
    recipe = Recipe(
        id="labels",
        fingerprint="1" * 64,
        needs="embedding",
        make=lambda: Labels([f"label {n}" for n in range(LABELS)], texts, 0.0),
    )
    seconds = seconds_of(partial(annotate, location, AnnotationSpec(name="z", labels=("-",)), lambda *_: recipe))
    return {"seconds": seconds, "peak": peak_rss()}


def annotate(
    location: str, spec: AnnotationSpec, recipe: Callable[..., Recipe] = recipe_of, resources: Resources = _HERE
) -> None:
    """Bring one annotation up to date."""
    with writing(Collection.open(location), "annotate") as collection:
        job = Annotate(collection=collection, console=_QUIET, resources=resources, recipe=recipe, max_reject_rate=0.0)
        job.run(spec)


def add_column(location: str) -> dict[str, float]:
    """Add known values as a column of the live version; returns seconds, bytes read and whether segments are shared."""
    collection = Collection.open(location)
    before = collection.read_version(collection.current() or "")

    def add() -> None:
        with writing(collection, "annotate") as held:
            made_by = ModelRecord(id="values", revision=None, fingerprint="2" * 64, dim=0)
            annotation_log(held, "v").add_run("collection", made_by, _values(collection))
            publish(held, _QUIET)

    read, seconds = bytes_read("rchar"), seconds_of(add)
    after = collection.read_version(collection.current() or "")
    shared = [new.files == old.files for new, old in zip(after.segments, before.segments, strict=True)]
    return {
        "seconds": seconds,
        "read": bytes_read("rchar") - read,
        "vectors": sum(segment.files[VECTORS].size for segment in after.segments),
        "shared": float(all(shared) and "v" in after.annotations),
    }


def _values(collection: Collection) -> Iterator[pa.Table]:
    live = collection.snapshot().live
    for part in live.catalog.read(live.schema_of(["image_id", "content_hash"]), f"{live.sql} ORDER BY seq", 100_000):
        numbers = part["image_id"].cast(pa.int64()).to_numpy()
        nothing: pa.Array[Any] = pa.array([None] * len(part), embedding_type(0))
        yield part.append_column(EMBEDDING, nothing).append_column("v", pa.array(numbers * 7919 % 1000))


def embed_changed(location: str, folder: Path, numbers: range, seed: int) -> None:
    """Draw new or changed pictures, embed them with random vectors, and index them."""
    draw(folder, numbers, seed)
    paths = [path_of(folder, number) for number in numbers]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    names = {"image_id": [path.name for path in paths], "uri": [str(path) for path in paths], "content_hash": hashes}
    build_index(embedded(location, pa.table(names), seed))


def embedded(location: str, rows: pa.Table, seed: int) -> Collection:
    """A collection with these rows, and random vectors of the demo model's length."""
    model = model_record(Checkpoint.find(str(DEMO_MODEL)).identity)
    collection = Collection.create_or_open(location)
    collection.add_run("pictures", model, [with_vectors(rows, model.dim, seed)])
    return collection


def command_that_annotates(location: str, name: str, options: Sequence[str], expected: int) -> Command:
    """A complete `likeness annotate`. Raises ValueError if it does not annotate the expected images."""
    done = likeness("annotate", location, "--name", name, "--on", "local", *options)
    if f": {expected:,} of " not in done.printed:
        raise ValueError(f"expected {expected:,} images to be annotated: {done.printed}")
    return done


def nightly(folder: Path, classifier: Path, pictures: int, report: Report) -> None:
    """Time annotations of all pictures, after 1% has changed, and without changes."""
    location, files = str(folder / "nightly"), folder / "files"
    labels = [option for shape in SHAPES for option in ("--label", shape)]
    options = {"labels": labels, "quality": ["--quality"], "classes": ["--classifier", str(classifier)]}
    in_new_process(embed_changed, location, files, range(pictures), 1)
    changed = range(0, pictures, 100)
    seconds: dict[str, dict[str, float]] = {name: {} for name in options}
    for what, expected in {"all": pictures, "1% changed": len(changed), "nothing changed": 0}.items():
        if expected == len(changed):
            in_new_process(embed_changed, location, files, changed, 2)
        for name, arguments in options.items():
            seconds[name][what] = command_that_annotates(location, name, arguments, expected).seconds
    report.table(f"seconds of a command that annotates {pictures:,} pictures", seconds)
    for name, each in seconds.items():
        report.at_most(f"{name}: 1% changed ÷ all", each["1% changed"] / each["all"], 0.03)


def million(folder: Path, rows: int, report: Report) -> None:
    """Time labels and another column for `rows` vectors."""
    location = str(folder / "million")
    in_new_process(index_rows, location, range(rows), Hashed())
    labels, column = in_new_process(label, location), in_new_process(add_column, location)
    report.at_most(f"{LABELS} labels of {rows:,} rows: s", labels["seconds"], 60)
    report.at_most("labels: peak memory, GB", labels["peak"] / 1e9, 1.5)
    report.keep("a column: bytes read ÷ bytes of the vectors", column["read"] / column["vectors"])
    report.at_most("a column: s", column["seconds"], 60)
    report.at_least("a column: all segments are shared", column["shared"], 1)


def write_vectors(path: Path, rows: int) -> None:
    target = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, DIM))
    for start in range(0, rows, BLOCK):
        target[start : start + BLOCK] = vectors_of(Clustered().table(start, min(start + BLOCK, rows))[EMBEDDING])


def import_from(source: str, location: str) -> dict[str, float]:
    """Seconds to the committed run, and from there to the index."""
    seconds = seconds_of(VectorImport(source=source, collection=location).run)
    return {"import": seconds, "index": seconds_of(lambda: build_index(Collection.open(location)))}


def exchange(folder: Path, rows: int, report: Report) -> None:
    """Time an import of vectors."""
    source = folder / "vectors.npy"
    in_new_process(write_vectors, source, rows)
    seconds = in_new_process(import_from, str(source), str(folder / "imported"))
    report.values(f"seconds for {rows:,} vectors", seconds)
    report.at_most("import: s", seconds["import"], 90)


def classifier_rates(folder: Path, images: int) -> dict[str, float]:
    """Images per second of a job with ResNet-50 in steady state, and of the bare forward pass before and after it."""
    model, files = save_resnet50(folder / "resnet-50"), photographs(folder / "photographs")
    uris = [path for path, _ in zip(cycle(files), range(images), strict=False)]
    names = {"image_id": [f"{n:05}" for n in range(images)], "uri": uris}
    collection = embedded(str(folder / "classified"), pa.table(names), 1)
    ended: list[tuple[float, int]] = []

    def timed(recipe: Recipe) -> Recipe:
        def make() -> Callable[[Batch], Columns]:
            predict = recipe.make()

            def timed_predict(batch: Batch) -> Columns:
                columns = predict(batch)
                ended.append((time.perf_counter(), (ended[-1][1] if ended else 0) + len(batch["image"])))
                return columns

            return timed_predict

        return replace(recipe, make=make)

    crop = Checkpoint.find(str(model), task="image classification").preprocessing.crop
    pixels = [decode_image(Path(path).read_bytes(), crop).pixels for path in uris[:32]]
    before = bare_rate(str(model), pixels)
    spec = AnnotationSpec(name="c", classifier=str(model))
    resources = _HERE.model_copy(update={"block_size": 64})
    annotate(collection.location, spec, lambda *arguments: timed(recipe_of(*arguments)), resources)
    return {"before": before, "job": steady_rate(ended), "after": bare_rate(str(model), pixels)}


@torch.inference_mode()
def bare_rate(model: str, crops: Sequence[npt.NDArray[np.uint8]]) -> float:
    """Images per second of the forward pass, with these crops as a batch."""
    network = ImageClassifier.load(model, device="cpu").model
    pixels = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2) / 64 - 2  # roughly normalised
    network(pixel_values=pixels)
    return rate(lambda: len(network(pixel_values=pixels).logits), 10)


def share_right(folder: Path, classifier: Path, count: int) -> float:
    """Share of `count` fresh pictures whose shape `annotate` recognises."""
    paths = sorted(draw_pictures(folder / "fresh", count, seed=_FRESH_SEED).iterdir())
    names = [path.name for path in paths]
    location = str(folder / "judged")
    build_index(embedded(location, pa.table({"image_id": names, "uri": [str(path) for path in paths]}), 1))
    annotate(location, AnnotationSpec(name="c", classifier=str(classifier)))
    searcher = Searcher.open(Collection.open(location))
    return float(np.mean([(searcher.row(name) or {})["c"] == name.partition("-")[0] for name in names]))


def main(report: Report, folder: Path, options: Any) -> None:
    sizes = (50_000, 2_000, 320, 300) if options.quick else (1_000_000, 20_000, 1_000, 1_000)
    rows, pictures, classified, judged = sizes
    classifier = in_new_process(save_demo_classifier, folder / "shapes", _TRAINED)
    right = in_new_process(share_right, folder, classifier, judged)
    report.at_least("the demo model as a classifier: shapes that are right", right, 0.95)
    rates = in_new_process(classifier_rates, folder, classified)
    bare = (rates["before"] + rates["after"]) / 2
    report.values("ResNet-50, images/s", rates)
    report.at_least("ResNet-50: the job ÷ the bare forward pass", rates["job"] / bare, 0.9)
    nightly(folder, classifier, pictures, report)
    million(folder, rows, report)
    exchange(folder, rows, report)


if __name__ == "__main__":
    run("annotate", __doc__, main, "fewer rows and pictures")
