"""The settings of a saved search."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from jobs.fields import Expression, Form, Location, Section, Target, Text


class SearchSpec(Section):
    """A query with a cut under a name. Each job tests the images that are new, and reports those that match."""

    name: Annotated[Text, Form(r"\S(.{0,98}\S)?", "1 to 100 characters in one line")] = Field(
        description="what an image that matches has in its column searches"
    )
    text: Text | None = Field(None, min_length=1, description="what to look for, in words")
    image: Location | None = Field(None, description="or the path of a picture")
    image_id: Text | None = Field(None, min_length=1, description="or the id of an image of the collection")
    min_score: float = Field(ge=-1, le=1, allow_inf_nan=False, description="the lowest cosine of a match: 0.3")
    filter: Expression | None = Field(None, description="only images that pass this filter match")
    notify: Target | None = Field(None, description="where new matches go; by default nowhere")

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if sum(each is not None for each in (self.text, self.image, self.image_id)) != 1:
            raise ValueError("expected one of text, image and image_id")
        return self
