"""Options of commands that are fields of models: their names, types, bounds, defaults and help are declared there."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from jobs.errors import UsageError
from jobs.values import sentence

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

Command = TypeVar("Command", bound=Callable[..., None])
Model = TypeVar("Model")

_FIELDS = "__fields__"


class Fields:
    """Some `fields` of a model in a module, or all `but` some, as options. `flags` and `metavars` name those that have
    unusual ones, `default` is for all, in place of the model's.

    The model is imported when one of its commands is called: all models take longer than `likeness --help` does.
    """

    def __init__(
        self,
        module: str,
        model: str,
        fields: str = "",
        *,
        but: str = "",
        flags: Mapping[str, str] | None = None,
        metavars: Mapping[str, str] | None = None,
        default: Any = ...,
    ) -> None:
        self._module, self._model, self._default = module, model, default
        self._names, self._but = fields.split(), but.split()
        self._flags, self._metavars = flags or {}, metavars or {}

    def parameters(self) -> Iterator[inspect.Parameter]:
        fields = declared_fields(getattr(import_module(self._module), self._model))
        for name in self._names or (name for name in fields if name not in self._but):
            shown = {"flag": self._flags.get(name), "metavar": self._metavars.get(name), "default": self._default}
            yield _parameter(name, fields[name], **shown)


def with_fields(*fields: Fields) -> Callable[[Command], Command]:
    """Adds fields of models to a command's options; the command gets them as `**options`, and from its context."""

    def extend(command: Command) -> Command:
        signature = inspect.signature(command)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        vars(command).update({_FIELDS: fields, "__signature__": signature.replace(parameters=own)})
        return command

    return extend


def has_fields(command: Callable[..., None]) -> bool:
    return _FIELDS in vars(command)


def with_all_options(command: Callable[..., None]) -> Callable[..., None]:
    """A function like the command's own, with a parameter for each of its options."""

    def run(*arguments: Any, **options: Any) -> None:
        command(*arguments, **options)

    signature = inspect.signature(command)
    more = [parameter for fields in vars(command)[_FIELDS] for parameter in fields.parameters()]
    parameters = [*signature.parameters.values(), *more]
    run.__doc__ = command.__doc__
    vars(run).update(__signature__=signature.replace(parameters=parameters))
    return run


def declared_fields(model: Any) -> "Mapping[str, FieldInfo]":
    """The fields of a model, or of a TypedDict."""
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    if issubclass(model, BaseModel):
        fields: dict[str, FieldInfo] = model.model_fields
        return fields
    hints = typing.get_type_hints(model, include_extras=True)
    fields = {name: FieldInfo.from_annotation(hint) for name, hint in hints.items()}
    for name in model.__optional_keys__:
        fields[name].default = None
    return fields


def _parameter(
    name: str, field: "FieldInfo", *, flag: str | None, metavar: str | None, default: Any
) -> inspect.Parameter:
    from annotated_types import Ge, Le
    from pydantic import BeforeValidator, PlainValidator

    annotation: Any = field.annotation
    metadata = list(field.metadata)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = get_args(annotation)[0]  # without None
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata += [inner for each in more for inner in getattr(each, "metadata", [each])]
    help_, bounds = _sentence(field.description or ""), dict[str, Any]()
    if any(isinstance(each, BeforeValidator | PlainValidator) for each in metadata):
        annotation = str  # the model parses it, or the command
    elif get_origin(annotation) in (tuple, frozenset, Sequence):
        annotation, help_ = list[str], f"{help_} May be repeated."
    elif annotation in (int, float):
        for each in metadata:
            bounds |= {"min": each.ge} if isinstance(each, Ge) else {"max": each.le} if isinstance(each, Le) else {}
    elif annotation is not bool and get_origin(annotation) is not Literal:
        annotation = str
    if default is ...:
        default = field.default if isinstance(field.default, str | int | float) else None
        default = inspect.Parameter.empty if field.is_required() else default
    dashed = name.replace("_", "-")
    negation = f"/--no-{dashed}" if annotation is bool and default is not False else ""
    option = typer.Option(flag or f"--{dashed}{negation}", help=help_, metavar=metavar, **bounds)
    kind = annotation | None if default is None else annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _sentence(description: str) -> str:
    """A field's description as help, which is Markdown."""
    text = " ".join(description.split()).replace("*", "\\*")
    return text if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


def fields_of(model: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are set and are fields of a model: the others leave it its default, or the environment's."""
    return {name: options[name] for name in declared_fields(model) if options.get(name) is not None}


def model_of(model: type[Model], options: Mapping[str, Any], flags: Mapping[str, str] | None = None) -> Model:
    """A model with its fields out of `options`. UsageError names each invalid one, as in `flags` if it is there."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(model).validate_python(fields_of(model, options))
    except ValidationError as error:
        raise UsageError("; ".join(_problem(each, flags or {}) for each in error.errors())) from error


def flag_of(name: str, flags: Mapping[str, str]) -> str:
    """The flag of a field, as in `flags` if it is there; in capitals the name of an argument."""
    return flags.get(name) or (name.upper() if name in ("source", "collection") else f"--{name.replace('_', '-')}")


def _problem(error: "ErrorDetails", flags: Mapping[str, str]) -> str:
    if not error["loc"]:
        return sentence(error)
    name = str(next(each for each in reversed(error["loc"]) if isinstance(each, str)))
    return problem_of(flag_of(name, flags), error)


def problem_of(flag: str, error: "ErrorDetails") -> str:
    """What is wrong with the value of an option, and the value."""
    wrong = sentence(error)
    return f"{flag} is {error['input']!r}: {wrong}" if wrong.startswith("expected") else f"{flag} {wrong}"
