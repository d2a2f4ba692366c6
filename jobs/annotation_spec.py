"""The settings of an annotation."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from jobs.fields import ClassName, Clusters, ColumnName, Form, Location, ModelName, Section, Text

Kind = Literal[
    "labels",
    "examples",
    "head",
    "quality",
    "ocr",
    "clusters",
    "uniqueness",
    "outlier",
    "match",
    "classifier",
    "captioner",
    "predictor",
]
"""What makes an annotation's values, by the field that asks for it. Clusters and heads may have labels as well."""

NO_LABEL = "none of these"
"""The label of an image that is near none of the given labels."""


class AnnotationSpec(Section):
    """Columns that are added to the images: labels, clusters, quality, words, classes, captions, your own class's."""

    name: ColumnName = Field(description="the column's name, and the prefix of further columns: NAME_score")
    labels: tuple[Text, ...] = Field(
        (),
        description="texts; each image gets the nearest one, or with clusters each cluster. With a head, the names of "
        "its outputs, in their order",
    )
    template: Text = Field("a photo of {}", description="the text for each label; {} is the label")
    none_below: float = Field(
        0.5,
        ge=0,
        le=1,
        description="an image gets no label if the best one scores below this quantile of random pairs",
    )
    examples: tuple[Location, ...] = Field(
        (),
        description="a file of judged images, CSV or JSON lines with image_id and label: like and unlike, or any "
        "labels. A head on the stored vectors learns them once, for all images",
    )
    head: Location | None = Field(
        None, description="a head on the stored vectors that was trained elsewhere: a linear one .safetensors, or .onnx"
    )
    quality: bool = Field(
        False, description="sharpness, brightness, contrast, entropy, colourfulness, and whether it is near-uniform"
    )
    ocr: bool = Field(
        False, description="lines of text in pictures, in Latin letters, Chinese and Japanese; needs likeness[ocr]"
    )
    clusters: Clusters | None = Field(
        None, description="similar images in so many clusters, 2 to 1,000, or auto: the square root of half the images"
    )
    uniqueness: bool = Field(False, description="1 - cosine with the nearest other image: 0 for a copy")
    outlier: bool = Field(False, description="1 - mean cosine with the ten nearest other images: high if unlike them")
    classifier: ModelName | None = Field(None, description="an image-classification model: hub id or ./folder")
    top_k: int = Field(5, ge=1, description="classes to keep for each image")
    captioner: ModelName | None = Field(
        None, description="an image-to-text model: hub id or ./folder; with vllm, its name on the server"
    )
    prompt: Text | None = Field(None, description="the start of every caption; for a chat model, the question")
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="what runs the captioner: this job, or a vLLM server"
    )
    url: Annotated[str, Form(r"^https?://[^@\s]+$", "a URL such as http://localhost:8000/v1")] | None = Field(
        None, description="the vLLM server's URL, such as http://localhost:8000/v1"
    )
    match: Location | None = Field(
        None, description="another collection with an index, in which the nearest of each image are found"
    )
    k: int = Field(10, ge=1, le=100, description="how many of the nearest images in the other collection to keep")
    predictor: ClassName | None = Field(None, description="your own class, module:Class; this runs its code")

    @property
    def kind(self) -> Kind:
        return self._given[-1]

    @property
    def _given(self) -> list[Kind]:
        return [kind for kind in get_args(Kind) if getattr(self, kind)]

    @property
    def is_computed(self) -> bool:
        """Whether the values depend on other images, so that they are computed from the live index."""
        return self.kind in ("uniqueness", "outlier")

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        labels = tuple(label.strip() for label in labels)
        wrong = [label for label in labels if labels.count(label) > 1 or label in ("", NO_LABEL)]
        if wrong:
            raise ValueError(f"expected different labels, none of them empty or {NO_LABEL!r}, got {wrong[0]!r}")
        return labels

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if template.count("{}") != 1:
            raise ValueError("expected a text with {} once, where the label goes")
        return template

    @model_validator(mode="after")
    def _require_one(self) -> AnnotationSpec:
        if len(self._given) != 1 and self._given not in (["labels", "clusters"], ["labels", "head"]):
            first, *others = get_args(Kind)
            raise ValueError(f"expected one of {first} (--label or --labels), {', '.join(others)}")
        if self.head and len(self.labels) == 1:
            raise ValueError("a head with one output has no labels: expected none, or one for each of several outputs")
        if not self.captioner and (self.prompt or self.url or self.engine == "vllm"):
            raise ValueError("prompt, engine and url are for a captioner: expected captioner as well, or none of these")
        if (self.engine == "vllm") != bool(self.url):
            raise ValueError("expected both engine vllm and the url of its server, or neither")
        return self
