"""A job in a file, in YAML, for `reembed --spec`, `watch --spec` and `schedule`."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from jobs.errors import SpecError
from jobs.spec import JobSpec
from jobs.values import sentence


class _Loader(yaml.SafeLoader):
    """Reads whole numbers and booleans as in YAML 1.2, and no dates: in YAML 1.1 an unquoted 2:8 is 128, 010 is 8, 08
    an error, and the key `on` is true. Refuses a key that a mapping has twice, of which PyYAML keeps the last.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    problem = f"found {key.value!r:.80} for the second time in one mapping"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


_INT, _BOOL, _DATE, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "bool", "timestamp", "merge"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _BOOL, _DATE)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(_BOOL, re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


def read_spec(path: Path) -> JobSpec:
    """The job in a file. SpecError names the file, and each line and field with what was expected there."""
    try:
        with path.open(encoding="utf-8") as file:  # for a string, errors would quote the line, which may hold a secret
            loader = _Loader(file)
            node = loader.get_single_node()
            content = loader.construct_document(node) if node else None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read ({error}): expected a job in YAML, such as deploy/job.yaml") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: `!!int eight`
        raise SpecError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return JobSpec.model_validate(content, context=path.absolute().parent)
    except ValidationError as error:
        raise SpecError("; ".join(_problem(path, node, each) for each in error.errors())) from error


class SpecFile:
    """A job's file that may be edited while the job is in use; `spec` is the last valid job in it."""

    def __init__(self, path: Path, read: Callable[[], JobSpec] | None = None) -> None:
        self.path = path
        self._read = read or partial(read_spec, path)
        self._seen = self._state()
        self.spec = self._read()

    @property
    def has_changed(self) -> bool:
        """Whether the file was written since it was last read."""
        return self._state() != self._seen

    def read_again(self) -> JobSpec:
        """The job as the file now says. SpecError if it is not valid; `spec` then stays."""
        self._seen = self._state()  # before reading, so that what is written meanwhile is read the next time
        self.spec = self._read()
        return self.spec

    def _state(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _problem(path: Path, node: yaml.Node | None, error: Any) -> str:
    """The error with its place: `job.yaml, line 3, index.target_recall: …`."""
    location: Sequence[str | int] = error["loc"]
    line = node.start_mark.line + 1 if node else 1
    for name in location:
        if isinstance(node, yaml.SequenceNode) and isinstance(name, int):
            node = node.value[name]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        pair = next((pair for pair in pairs if pair[0].value == name), None)
        if pair is None:
            break
        node, line = pair[1], pair[0].start_mark.line + 1
    message = sentence(error)
    if error["type"] == "extra_forbidden":
        message = f"is not a field here: expected some of {', '.join(_fields_beside(location))}"
    elif error["type"] == "value_error":
        message = message.removeprefix("is ")
    elif message.startswith("expected") and "notify" not in location and location:  # its addresses are secret
        message = f"{message}, got {error['input']!r}"
    field = ".".join(map(str, location))
    return f"{path}, line {line}{f', {field}' if field else ''}: {message}"


def _fields_beside(location: Sequence[str | int]) -> list[str]:
    """The fields of the section in which a field is."""
    section: type[BaseModel] = JobSpec
    for name in location[:-1]:
        if isinstance(name, str):  # not the number of an item
            [section] = _models_in(section.model_fields[name].annotation)
    return list(section.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
