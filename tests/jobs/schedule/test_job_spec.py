"""A job in a file: its fields, and the messages for invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import SpecError
from jobs.schedule.spec_file import read_spec
from jobs.spec import JobSpec, Resources
from tests.support.paths import ROOT

WHOLE = """\
source: pictures
collection: s3://bucket/collection
model: demo
resources: {actors: "2:8", num_gpus: 0.5, actor_resources: {npu: 2}, batch_size: 32, block_size: 128, address: auto,
  cpus_per_actor: 4, wait_for_nodes: 10m}
index:
  target_recall: 0.95
  max_memory: 2GiB
retention: {keep: 5}
missing: keep
max_missing: 0.5
max_reject_rate: 0.1
extensions: [jpg]
verify_hash: true
notify:
  on_success: {command: cat}
  on_failure: {url: "https://hooks.example/${TOKEN}"}
metrics_file: metrics/likeness.prom
draft: false
keep: {width: {$gte: 640}}
"""


def spec_of(tmp_path: Path, text: str) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return read_spec(path)


def test_every_field_reaches_the_job(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, WHOLE)
    resources = spec.resources
    assert spec.source == str(tmp_path / "pictures")  # relative to the file's folder, wherever the job is run
    assert spec.collection == "s3://bucket/collection"
    assert spec.model == "demo"
    assert (resources.actors, resources.num_gpus, resources.address) == ((2, 8), 0.5, "auto")
    assert resources.actor_resources == {"npu": 2}
    assert (resources.cpus_per_actor, resources.wait_for_nodes) == (4, 600)
    assert (resources.batch_size, resources.block_size, spec.max_reject_rate) == (32, 128, 0.1)
    assert spec.index.model_dump(exclude_none=True) == {"target_recall": 0.95, "max_memory": 2 * 1024**3}
    assert (spec.missing, spec.max_missing, spec.verify_hash) == ("keep", 0.5, True)
    assert (spec.extensions, spec.draft) == (("jpg",), False)
    assert spec.keep == {"width": {"$gte": 640}}
    assert spec.retention.keep == 5
    assert spec.metrics_file == str(tmp_path / "metrics" / "likeness.prom")


def test_defaults_are_those_of_the_command(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "source: s3://a/b\ncollection: /data/c\n")
    assert spec == JobSpec(source="s3://a/b", collection="/data/c")
    assert (spec.retention.keep, spec.missing, spec.max_missing) == (3, "delete", 0.2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("resources: {actors: 2:8}", {"resources": Resources(actors=(2, 8))}),  # in YAML 1.1: 128
        ("resources: {actors: 4}", {"resources": Resources(actors=(4, 4))}),
        ("resources: {on: ray}", {"resources": Resources(on="ray")}),  # in YAML 1.1: the key is true
        # In YAML 1.1: an error, and 64.
        ("resources: {batch_size: 08, block_size: 0100}", {"resources": Resources(batch_size=8, block_size=100)}),
        ("revision: 2026-02-30", {"revision": "2026-02-30"}),
        ("extensions: [JPG, .png, ' .Tiff ']", {"extensions": ("jpg", "png", "tiff")}),
        ("model: openai/clip-vit-base-patch32", {"model": "openai/clip-vit-base-patch32"}),
        ("uri_column: image_url", {"uri_column": "image_url"}),
        ("id_column: sku", {"id_column": "sku"}),
        ("column_types: {ean: text, price: number}", {"column_types": {"ean": "text", "price": "number"}}),
        ("column_types: ean=text, price = number", {"column_types": {"ean": "text", "price": "number"}}),
        ("model: ./models/mine", {"model": "{folder}/models/mine"}),
        ("model: /models/mine", {"model": "/models/mine"}),
    ],
)
def test_values_are_read_as_written(tmp_path: Path, line: str, expected: dict[str, Any]) -> None:
    spec = spec_of(tmp_path, f"source: a\ncollection: b\n{line}")
    [(name, value)] = expected.items()
    assert getattr(spec, name) == (value.format(folder=tmp_path) if isinstance(value, str) else value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: a\n", r"job\.yaml, line 1, collection: is missing"),
        (
            WHOLE.replace("0.95", "95"),
            r"line 7, index\.target_recall: expected a number of at most 1, got",
        ),
        (WHOLE.replace("address: auto", "on: local"), r"line 4, resources\.on: local: expected ray, or none of actors"),
        (WHOLE + "searches: {}\n", r"line 21, searches: expected a list, got {}"),
        (WHOLE + "searches: [{name: a, min_score: 0, text: ''}]\n", r"searches\.0\.text: is empty"),
        (
            WHOLE + "annotations:\n- name: a\n  ocr: true\n-\n  ocr: true\n  name: score\n",
            r"line 26, annotations\.1\.name: 'score': expected a name other than rank, ",
        ),
        (WHOLE + "annotations:\n- name: a\n- 7\n", r"line 22, .*line 23, annotations\.1: expected a mapping"),
        (WHOLE + "searches: [{name: 5, min_score: 0, text: a}]\n", r"searches\.0\.name: expected text, got 5"),
        (
            WHOLE + "searches: [{name: a, min_score: 0, text: a, notify: 'http://a'}]\n",
            r"searches\.0\.notify: expected a mapping of fields to values$",
        ),
        (WHOLE + "retain: {}\n", r"line 21, retain: is not a field here: expected some of source, .*, retention, "),
        (
            WHOLE.replace("max_memory:", "memory:"),
            r"line 8, index\.memory: .*: expected some of target_recall, max_",
        ),
        (WHOLE.replace("{command: cat}", "{cmd: cat}"), r"notify\.on_success\.cmd: .*: expected some of url, command"),
        (WHOLE + "annotations: [{nam: x}]\n", r"line 21, annotations\.0\.nam: .*: expected some of name, labels"),
        *(
            (f"{WHOLE}annotations: [{{name: x, {given}}}]\n", r"expected one of labels \(.*\), examples, head, quality")
            for given in ("k: 3", "quality: true, ocr: true", "labels: [a], quality: true", "head: h.onnx, clusters: 2")
        ),
        (WHOLE.replace("missing: keep", "missing: drop"), r"line 10, missing: expected 'keep' or 'delete', got"),
        (WHOLE.replace("{command: cat}", "{}"), r"line 16, notify\.on_success: expected one of url and command"),
        (WHOLE.replace("likeness.prom", "likeness.txt"), r"line 18, metrics_file: .*\.prom"),
        (WHOLE.replace("address: auto,", ""), r"line 5, resources\.wait_for_nodes: for an autoscaling Ray cluster: "),
        (WHOLE.replace("{width: {$gte: 640}}", "640"), r"line 20, keep: '640': expected a JSON object such as"),
        (
            WHOLE.replace("{$gte: 640}", "!!binary aGk="),
            r"line 20, keep: .*expected a filter with values that JSON can",
        ),
        (
            WHOLE.replace("{width: {$gte: 640}}", "&x {$not: *x}"),
            r"line 20, keep: .*expected a filter with values that",
        ),
        (WHOLE + "tiles: 1x1\n", r"line 21, tiles: '1x1': expected columns x rows, of 1 to 4 and not both 1"),
        (WHOLE + "keep: {size: 3}\n", r"is not YAML: found 'keep' for the second time in one mapping in .* line 21,"),
        (
            WHOLE.replace("{$gte: 640}", "{$gte: 3, $gte: 5}"),
            r"is not YAML: found '\$gte' for the second time in one mapping in .* line 20,",
        ),
        (
            WHOLE.replace("{width: {$gte: 640}}", """'{"n": 1, "n": 2}'"""),
            r"line 20, keep: .*the member 'n' is there more than once",
        ),
        ("source: [a\n", r"job\.yaml is not YAML: .* line 2"),
        ("source: !!int eight\n", r"job\.yaml is not YAML: .* 'eight'"),
        ("", r"job\.yaml, line 1: .*mapping"),
        ("source: 5\ncollection: true\n", r"line 1, source: .*text, got 5; .*line 2, collection: .*, got True"),
        ("notify: {on_failure: {url: hooks.example/T0P-SECRET}}", r"notify\.on_failure\.url: .* matches pattern"),
        ("notify: {on_failure: https://hooks.example/T0P-SECRET}", r"notify\.on_failure: .*mapping"),
        ("notify: {on_failure: {url: https://hooks.example/T0P-SECRET}", r"is not YAML: .* line 1"),
        ("- notify: {on_failure: {url: https://hooks.example/T0P-SECRET}}", r"line 1: .*mapping"),
    ],
)
def test_errors_name_line_and_field_without_secrets(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        spec_of(tmp_path, text)
    assert "T0P-SECRET" not in str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml cannot be read .* such as deploy/job\.yaml"):
        read_spec(tmp_path / "none.yaml")


def test_the_schema_that_editors_use_is_up_to_date() -> None:
    """Regenerate it with: python -m jobs.spec > deploy/job.schema.json"""
    path = ROOT / "deploy" / "job.schema.json"
    schema = JobSpec.model_json_schema()
    assert json.loads(path.read_text()) == schema
    number = schema["$defs"]["Resources"]["properties"]["num_gpus"]["anyOf"][0]
    assert number == {"type": "number", "minimum": 0}  # a keyword of JSON Schema, which editors check
