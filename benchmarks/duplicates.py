"""Finds planted duplicates of each kind among drawn pictures: `python -m benchmarks.duplicates [--quick]`.

Some of 2,000 pictures are copied: the same bytes, the same pixels as PNG, re-encoded as JPEG at quality 60 to 95,
resized by 0.35 to 2, and cropped: by 3% at both ends of each side, at one, or anywhere, or from 16:9 to 16:10. Others
get a similar scene that is not a copy: the same drawing with another colour, pattern or shape, the same subject drawn
again, and the next picture of a turning camera. Documents of 29 series, in which a number or some words differ, are
copied likewise, though resized by 0.5 at least, as smaller ones cannot be read. The demo model proposes pairs by their
vectors.
"""

import io
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.common.report import Report, Row, run
from benchmarks.documents import DOCUMENTS
from index.analysis.duplicate_plan import DuplicatePlan
from jobs.demo.collection import embed_here
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES, Subject, draw, random_subject
from jobs.duplicates.find import Finder
from jobs.duplicates.picture_loader import PictureLoader

Numbers = np.random.Generator
Box = tuple[float, float, float, float]
COPIES: Final = ("identical_bytes", "identical_pixels", "re_encoded", "resized", "cropped")
SCENES: Final = ("colour", "pattern", "shape", "again", "turned")
ORIGINALS, PLANTED, SERIES = 2_000, 100, 8
"""Drawn pictures, how many of them have a copy or scene of each kind, and the documents of each series."""


def encoded(picture: Image.Image, form: str, **options: Any) -> bytes:
    target = io.BytesIO()
    picture.save(target, form, **options)
    return target.getvalue()


def part(picture: Image.Image, box: Box) -> Image.Image:
    width, height = picture.size
    left, top, right, bottom = (round(fraction * side) for fraction, side in zip(box, (width, height) * 2, strict=True))
    return picture.crop((left, top, right, bottom))


def crop_box(numbers: Numbers, number: int) -> Box:
    x, y = numbers.uniform(0, 0.03, 2)
    boxes = (
        (0.03, 0.03, 0.97, 0.97),
        (0.03, 0.0, 1.0, 1.0),
        (0.0, 0.0, 1.0, 0.97),
        (x, y, x + 0.97, y + 0.97),
        (0.05, 0.0, 0.95, 1.0),
    )
    return boxes[number % len(boxes)]


def copy(kind: str, data: bytes, numbers: Numbers, number: int, smallest: float = 0.35) -> bytes:
    """A copy of a JPEG file, of one of the `COPIES`."""
    picture = Image.open(io.BytesIO(data))
    quality = int(numbers.integers(60, 96))
    match kind:
        case "identical_bytes":
            return data
        case "identical_pixels":
            return encoded(picture, "PNG", compress_level=1)
        case "resized":
            by = numbers.uniform(smallest, 2)
            size = round(picture.width * by), round(picture.height * by)
            return encoded(picture.resize(size, Image.Resampling.LANCZOS), "JPEG", quality=quality)
        case "cropped":
            return encoded(part(picture, crop_box(numbers, number)), "JPEG", quality=quality)
        case _:
            return encoded(picture, "JPEG", quality=quality)


def scene(kind: str, subject: Subject, size: tuple[int, int], seed: int, numbers: Numbers) -> Image.Image:
    """A picture similar to `draw(subject, size, default_rng(seed))`, but not a copy."""
    other: dict[str, Callable[[], Any]] = {
        "colour": lambda: next(name for name in numbers.permutation(list(COLOURS)) if name != subject.colour),
        "pattern": lambda: next(name for name in numbers.permutation(PATTERNS) if name != subject.pattern),
        "shape": lambda: next(name for name in numbers.permutation(SHAPES) if name != subject.shape),
    }
    if kind in other:
        return draw(replace(subject, **{kind: str(other[kind]())}), size, np.random.default_rng(seed))
    if kind == "again":
        return draw(subject, size, numbers)
    x, y = numbers.uniform(0.04, 0.08, 2)
    return part(draw(subject, size, np.random.default_rng(seed)), (x, y, x + 0.92, y + 0.92))


def plant(folder: Path, originals: int, planted: int) -> dict[str, str]:
    """Draw the pictures into `folder`; returns the kind of copy or scene of each id that is not an original."""
    folder.mkdir()
    kinds: dict[str, str] = {}
    all_kinds = (*COPIES, *SCENES)
    for number in range(originals):
        numbers = np.random.default_rng((19, number))
        subject, seed = random_subject(numbers), int(numbers.integers(2**31))
        size = int(numbers.integers(240, 640)), int(numbers.integers(240, 640))
        kind = all_kinds[number % len(all_kinds)] if number < planted * len(all_kinds) else ""
        picture = draw(subject, size, np.random.default_rng(seed))
        if kind == "turned":
            picture = part(picture, (0.0, 0.0, 0.92, 0.92))
        data = encoded(picture, "JPEG", quality=94)
        (folder / f"{number:05}.jpg").write_bytes(data)
        if not kind:
            continue
        if kind in COPIES:
            made = copy(kind, data, numbers, number // len(all_kinds))
        else:
            made = encoded(scene(kind, subject, size, seed, numbers), "JPEG", quality=int(numbers.integers(60, 96)))
        name = f"{number:05}-{kind}.{'png' if kind == 'identical_pixels' else 'jpg'}"
        (folder / name).write_bytes(made)
        kinds[name] = kind
    return kinds


def plant_documents(folder: Path, each: int) -> dict[str, str]:
    """Draw `each` documents of each series, all with a copy; returns the kind of each copy."""
    kinds: dict[str, str] = {}
    for place, (series, draw_document) in enumerate(DOCUMENTS.items()):
        seen = set[bytes]()
        contents = itertools.count()
        while len(seen) < each:
            numbers = np.random.default_rng((place, next(contents)))
            picture = draw_document(np.random.default_rng(place), numbers)
            if picture.tobytes() in seen:
                continue
            number, data = len(seen), encoded(picture, "JPEG", quality=94)
            seen.add(picture.tobytes())
            kind = COPIES[(place + number) % len(COPIES)]
            name = f"{series}{number:02}-{kind}.{'png' if kind == 'identical_pixels' else 'jpg'}"
            (folder / f"{series}{number:02}.jpg").write_bytes(data)
            (folder / name).write_bytes(copy(kind, data, numbers, number, smallest=0.5))
            kinds[name] = kind
    return kinds


def found_pairs(plan: DuplicatePlan) -> dict[tuple[str, str], str]:
    """The kind of each pair of a duplicate and the picture to keep, smaller id first."""
    pairs = [(group.keep.image_id, duplicate) for group in plan.found for duplicate in group.duplicates]
    return {(min(keep, other.image_id), max(keep, other.image_id)): other.kind for keep, other in pairs}


def judge(report: Report, planted: dict[str, str], found: dict[tuple[str, str], str]) -> None:
    """Add precision and recall of each kind, and how the similar scenes were classified."""
    pairs = {(name, f"{name.partition('-')[0]}.jpg"): kind for name, kind in planted.items()}  # "-" comes before "."
    expected = {pair: "re_encoded" if kind == "resized" else kind for pair, kind in pairs.items() if kind in COPIES}
    rows = []
    for kind in COPIES:
        reported = "re_encoded" if kind == "resized" else kind
        of_kind = [pair for pair, planted_kind in pairs.items() if planted_kind == kind]
        claimed = [pair for pair, found_kind in found.items() if found_kind == reported]
        right = sum(expected.get(pair) == reported for pair in claimed)
        precision = right / max(1, len(claimed))
        # The demo model, trained on drawings, does not propose all crops of documents, so their recall has no bar.
        recall, of_documents = (
            np.mean([found.get(pair) == reported for pair in of_kind if pair[0][0].isdigit() == is_drawing]).item()
            for is_drawing in (True, False)
        )
        row = {"kind": kind, "planted": len(of_kind), "recall": recall, "of documents": of_documents}
        rows.append({**row, "precision": precision})
        report.at_least(f"{kind}: recall", recall, 0.99)
        report.at_least(f"{kind}: precision", precision, 0.999)
    report.table("copies", rows)
    scenes = [(kind, found.get(pair, "no pair")) for pair, kind in pairs.items() if kind in SCENES]
    outcomes = Counter(scenes).items()
    table: list[Row] = [{"scene": kind, "taken for": taken, "": count} for (kind, taken), count in outcomes]
    report.table("similar scenes", table)
    wrong = {" ".join(pair): kind for pair, kind in found.items() if kind != "similar" and expected.get(pair) != kind}
    missed = {" ".join(pair): found.get(pair) for pair, kind in expected.items() if found.get(pair) != kind}
    report.keep("wrong", wrong)
    report.keep("missed", missed)


def main(report: Report, folder: Path, options: Any) -> None:
    planted = plant(folder / "pictures", *((400, 20) if options.quick else (ORIGINALS, PLANTED)))
    planted |= plant_documents(folder / "pictures", 3 if options.quick else SERIES)
    collection = embed_here(folder / "pictures", folder / "collection")
    with closing(PictureLoader()) as reader:
        plan = Finder(collection=collection, loader=reader, min_score=0.995).plan(folder)
    judge(report, planted, found_pairs(plan))


if __name__ == "__main__":
    run("duplicates", __doc__, main, "400 pictures, 20 of each kind, and 3 documents of each series")
