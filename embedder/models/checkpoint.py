"""A checkpoint folder in the Hugging Face layout: its location, configuration and fingerprint."""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from PIL import Image

from embedder.errors import ModelError, ModelNotFoundError
from embedder.identity import ModelIdentity
from embedder.images import CropSpec
from embedder.models.families import FAMILIES, embedding_dim, vision_config

DEMO_MODEL: Final = Path(__file__).parent / "demo"
"""The model that comes with Likeness. Its name is `demo`, as its folder is another one on each machine."""

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Settings that change a picture's vector without changing the weights' names and shapes. This lists the relevant
# keys, not the irrelevant ones, because configurations get new keys with every release of transformers.
_ARITHMETIC_KEYS = ("model_type", "hidden_act", "layer_norm_eps", "num_attention_heads", "image_size", "patch_size")

_IRRELEVANT_KEYS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")

Task = Literal["image classification", "captions"]
_ARCHITECTURES: Mapping[Task, tuple[str, ...]] = {
    "image classification": ("ForImageClassification",),
    "captions": ("ForConditionalGeneration", "ForCausalLM", "ForVisionText2Text"),
}
"""Endings of the names of classes for a task. Pure language models are refused later: they have no image processor."""
_ANY_SHAPE_SIDE = 448
"""Side of the crop for a captioner that takes pictures of any shape, such as Qwen-VL."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How to turn a crop into the model's input: `(uint8 · rescale − mean) / std` for each channel."""

    crop: CropSpec
    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder with `config.json`, weights and the image processor's settings.

    `model_id` is `demo`, the hub id or the folder's absolute path, so it loads the same model from any working
    directory. `revision` is the commit of a hub id.
    """

    folder: Path
    model_id: str
    revision: str | None
    model_type: str
    config: Mapping[str, Any] = field(repr=False, compare=False)
    preprocessing: Preprocessing
    weights: tuple[Path, ...]

    @classmethod
    def find(cls, model: str, revision: str | None = None, *, task: Task | None = None) -> "Checkpoint":
        """Reads the demo model or a local folder, or else downloads from the hub. ModelNotFoundError or ModelError.

        Without a `task`, only the `FAMILIES` are accepted; with one, any type for that task.
        """
        folder, model_id, commit = _locate(model, revision)
        config_file = folder / "config.json"
        if not config_file.is_file():
            raise ModelNotFoundError(
                f"expected a Hugging Face checkpoint in {folder}, but it has no config.json: give the folder "
                "that `save_pretrained` wrote or `hf download` filled"
            )
        config = _read_json(config_file)
        model_type = config.get("model_type")
        if task:
            architectures = config.get("architectures") or ["none"]
            if not all(str(name).endswith(_ARCHITECTURES[task]) for name in architectures):
                raise ModelError(f"{model_id}: expected a model for {task}, got {', '.join(map(str, architectures))}")
        elif model_type not in FAMILIES:
            raise ModelError(_unsupported(model_id, model_type))
        return cls(
            folder=folder,
            model_id=model_id,
            revision=commit,
            model_type=str(model_type),
            config=config,
            preprocessing=_read_preprocessing(folder, any_shape=task == "captions"),
            weights=tuple(_weight_files(folder)),
        )

    @property
    def crop(self) -> CropSpec:
        return self.preprocessing.crop

    @cached_property
    def identity(self) -> ModelIdentity:
        """Reads all weights, without torch."""
        dim = embedding_dim(self.model_type, self.config)
        return ModelIdentity(model_id=self.model_id, revision=self.revision, fingerprint=self._fingerprint(), dim=dim)

    @cached_property
    def classifier_fingerprint(self) -> str:
        """For image classification: also covers the whole configuration, which has the names of the classes."""
        config = {key: value for key, value in self.config.items() if key not in _IRRELEVANT_KEYS}
        return hashlib.sha256(json.dumps([self._fingerprint(), config], sort_keys=True).encode()).hexdigest()

    @cached_property
    def captioner_fingerprint(self) -> str:
        """For captions: also covers the tokenizer, chat template and generation settings."""
        from embedder.models.hub import SMALL_FILES

        digest = hashlib.sha256(self.classifier_fingerprint.encode())
        small = {path for pattern in SMALL_FILES for path in self.folder.glob(pattern)}
        for path in sorted(small):
            # classifier_fingerprint covers config.json, and an index only says how the weights are split.
            if path.name != "config.json" and not path.name.endswith(".index.json"):
                digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def _fingerprint(self) -> str:
        """SHA-256 of everything that affects a picture's vector: weights, arithmetic and preprocessing, but not the
        tokenizer. The same for every copy of a checkpoint, no matter how its safetensors are split.
        """
        digest = hashlib.sha256()
        vision = vision_config(self.model_type, self.config)
        arithmetic = {key: vision.get(key) for key in _ARITHMETIC_KEYS}
        settings = self.preprocessing
        crop = [settings.crop.side, settings.crop.shortest_edge, int(settings.crop.resample)]
        numbers = [f"{number:.9g}" for number in (settings.rescale, *settings.mean, *settings.std)]
        digest.update(json.dumps([self.model_type, arithmetic, crop, numbers], sort_keys=True).encode())
        for label, path, start, stop in sorted(part for file in self.weights for part in _parts(file)):
            digest.update(label.encode())
            if start == stop:
                continue
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole,
                memoryview(whole) as view,
                view[start:stop] as part,
            ):
                digest.update(part)
        return digest.hexdigest()


def _parts(path: Path) -> Iterator[tuple[str, Path, int, int]]:
    """Label, path, start and end of each part of a weights file: each tensor of safetensors, else the whole file.

    A safetensors file consists of 8 bytes with the header's length, the JSON header, and the data.
    """
    if path.suffix != ".safetensors":
        yield path.name, path, 0, path.stat().st_size
        return
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, path.stat().st_size)))
        except ValueError as error:
            raise ModelError(
                f"{path} is not a safetensors file ({error}): download the checkpoint again, in a clone with "
                "`git lfs pull`"
            ) from error
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            yield f"{name} {entry['dtype']} {entry['shape']}", path, start, stop


def _locate(model: str, revision: str | None) -> tuple[Path, str, str | None]:
    named = model == DEMO_MODEL.name
    folder = DEMO_MODEL if named else Path(os.path.expanduser(model))  # noqa: PTH111  # keeps an unknown ~user
    if folder.is_dir():
        if revision is not None:
            what = "the model that comes with Likeness" if named else "a folder"
            raise ModelError(f"'{model}' is {what}, but only hub ids have revisions: leave '{revision}' out")
        folder = folder.resolve()
        return folder, model if named else _utf8(folder), None
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or model.endswith("/") or folder.exists():
        raise ModelNotFoundError(
            f"there is no folder {folder.absolute()}: give the folder of a Hugging Face checkpoint (the one "
            "with config.json), or a hub id such as openai/clip-vit-base-patch32"
        )
    from embedder.models.hub import fetch_checkpoint  # the hub's client takes a quarter of a second to import

    folder = fetch_checkpoint(model, revision)
    return folder, model, folder.name


def _utf8(folder: Path) -> str:
    """The path of a model, which collections record. Raises ModelError if it is not UTF-8."""
    path = str(folder)
    if path != path.encode(errors="replace").decode():
        shown = os.fsencode(folder).decode(errors="backslashreplace")
        raise ModelError(f"{shown} is not UTF-8: rename the folder, or copy the model to one whose path is")
    return path


def _unsupported(model_id: str, model_type: object) -> str:
    hint = ": SigLIP 2 NaFlex takes pictures of varying shape; use a checkpoint of fixed resolution, such as "
    hint = f"{hint}google/siglip2-base-patch16-224" if model_type == "siglip2" else ""
    return f"{model_id}: expected a model of type {', '.join(FAMILIES)}, got {model_type}{hint}"


def _weight_files(folder: Path) -> list[Path]:
    """The weights files: safetensors if there are any; shards are listed in their index."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = [folder / shard for shard in sorted(set(_read_json(index).get("weight_map", {}).values()))]
            missing = [shard.name for shard in shards if not shard.is_file()]
            if missing or not shards:
                raise ModelNotFoundError(f"{folder} lacks {missing or 'the files'} named in {index.name}")
            return shards
    raise ModelNotFoundError(
        f"{folder} has a config.json but no weights: expected {' or '.join(_WEIGHTS)}; download the whole checkpoint"
    )


def _read_preprocessing(folder: Path, *, any_shape: bool = False) -> Preprocessing:
    """The image processor's settings, read from its file because its class may need torchvision. If the model takes
    pictures of `any_shape`, they are squashed into squares.
    """
    new, old = folder / "processor_config.json", folder / "preprocessor_config.json"
    # transformers 5 writes the new file, and prefers it.
    settings = _read_json(new).get("image_processor") if new.is_file() else None
    if settings is None and old.is_file():
        settings = _read_json(old)
    if not isinstance(settings, dict):
        raise ModelError(
            f"{folder} does not say how pictures are prepared: expected preprocessor_config.json; save the "
            "image processor beside the model, or download the whole checkpoint"
        )
    try:
        normalised = settings.get("do_normalize", True)
        return Preprocessing(
            crop=_crop_or_square(settings) if any_shape else _crop(settings),
            rescale=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else 1.0,
            mean=_channels(settings["image_mean"]) if normalised else (0.0, 0.0, 0.0),
            std=_channels(settings["image_std"]) if normalised else (1.0, 1.0, 1.0),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{folder}: expected the image processor to cut a square and to normalise three channels, got "
            f"{settings} ({type(error).__name__}: {error})"
        ) from error


def _crop_or_square(settings: dict[str, Any]) -> CropSpec:
    try:
        return _crop(settings)
    except (AttributeError, KeyError, TypeError, ValueError):
        return CropSpec(side=_ANY_SHAPE_SIDE, shortest_edge=None)


def _crop(settings: dict[str, Any]) -> CropSpec:
    """The crop. A bare number as size is the shortest edge in older files, or the square's side if nothing is cropped
    (ViT).
    """
    if not settings.get("do_resize", True):
        raise ValueError("pictures that are not resized do not fit into one batch")
    resample = Image.Resampling(settings.get("resample", Image.Resampling.BICUBIC))
    size = settings["size"]
    edge = size if isinstance(size, int) else size.get("shortest_edge")
    if edge is None or (isinstance(size, int) and not settings.keys() & {"crop_size", "crop_pct"}):
        if settings.get("do_center_crop") and _side(settings["crop_size"]) != _side(size):
            raise ValueError("a crop after squashing is not supported")
        return CropSpec(side=_side(size), shortest_edge=None, resample=resample)
    if settings.get("crop_pct"):  # ConvNeXt, which squashes at 384 pixels and above
        return CropSpec(
            side=edge, shortest_edge=int(edge / settings["crop_pct"]) if edge < 384 else None, resample=resample
        )
    if not settings.get("do_center_crop", "crop_size" in settings):
        raise ValueError("without a centre crop pictures are not square")
    return CropSpec(side=_side(settings["crop_size"]), shortest_edge=int(edge), resample=resample)


def _side(size: int | dict[str, int]) -> int:
    height, width = (size, size) if isinstance(size, int) else (size["height"], size["width"])
    if height != width:
        raise ValueError(f"{size} is not square")
    return height


def _channels(values: list[float]) -> tuple[float, ...]:
    if len(values) != 3:
        raise ValueError(f"{values} are not three channels")
    return tuple(float(value) for value in values)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}): download the checkpoint again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
