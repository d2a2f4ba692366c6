"""Options that are fields of models: none is declared twice."""

import inspect
import re
from typing import Any

import pytest
import typer

from api.search.query import QueryOptions
from api.settings import ServeSettings
from index.filters.operators import OPERATORS
from jobs.annotation_spec import AnnotationSpec
from jobs.curation.spec import SelectSpec
from jobs.spec import IndexBudget, JobSpec, Resources, Retention
from likeness.cli.app import app
from likeness.cli.model_options import declared_fields, has_fields, with_all_options

MODELS = (JobSpec, Resources, IndexBudget, Retention, AnnotationSpec, SelectSpec, ServeSettings, QueryOptions)
FIELDS = {name for model in MODELS for name in declared_fields(model)}
OF_ANOTHER_MEANING = {
    "embed": {"index"},  # whether to build one
    "import": {"index", "model"},  # whose vectors they are
    "annotate": {"labels"},  # a file of them
    "duplicates": {"min_score"},  # of images with each other
    "serve": {"address"},
    "demo": {"port"},
}
ARGUMENTS = {"source", "collection"}
COMMANDS = {each.name or each.callback.__name__: each.callback for each in app.registered_commands if each.callback}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_declared_twice(name: str) -> None:
    own = set(inspect.signature(COMMANDS[name]).parameters)
    assert own & FIELDS <= ARGUMENTS | OF_ANOTHER_MEANING.get(name, set())


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if has_fields(command)])
def test_fields_have_help_and_the_default_of_the_model(name: str) -> None:
    parameters = inspect.signature(with_all_options(COMMANDS[name])).parameters
    more = [each for key, each in parameters.items() if key not in inspect.signature(COMMANDS[name]).parameters]
    assert more
    for parameter in more:
        option: Any = parameter.annotation.__metadata__[0]
        assert isinstance(option, typer.models.OptionInfo)
        assert option.help
        assert option.help.endswith(".")
        fields = [declared_fields(model).get(parameter.name) for model in MODELS]
        defaults = [field.default for field in fields if field]
        assert parameter.default in (None, inspect.Parameter.empty, 1.0, *defaults)  # 1.0: `watch`


def test_all_commands_that_embed_a_source_take_the_same_fields_of_a_job() -> None:
    job = declared_fields(JobSpec).keys() - {"index"}  # of `embed`: whether to build one
    embed, reembed, watch = (
        job & inspect.signature(with_all_options(COMMANDS[name])).parameters.keys()
        for name in ("embed", "reembed", "watch")
    )
    assert watch - embed == {"missing", "max_missing"}
    assert reembed - watch == {"verify_hash"}
    assert embed <= watch <= reembed
    assert {"resources", "annotations", "searches", "metrics_file"}.isdisjoint(reembed)


def test_the_help_of_a_filter_names_all_operators() -> None:
    named = re.findall(r"\$\w+", declared_fields(QueryOptions)["filter"].description or "")
    assert sorted(named) == sorted([*OPERATORS, "$and", "$or", "$not"])
