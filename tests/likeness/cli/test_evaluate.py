"""`likeness evaluate`: what it prints about one collection, about two, and about labels that neighbours doubt."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from index.collection import Collection
from tests.support.collections.hand_made import DIM, add_version, rows
from tests.support.command_line import Run


@pytest.fixture
def clusters(collection: Collection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Collection:
    """Two clusters of twelve images with a label each, except for one image that has the other label."""
    monkeypatch.chdir(tmp_path)
    vectors = np.repeat(np.eye(2, DIM), 12, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((24, DIM))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    labels = ["cat"] * 12 + ["dog"] * 11 + ["cat"]
    add_version(collection, rows([f"{n:02}" for n in range(24)], vectors, metadata={"label": pa.array(labels)}))
    return collection


def test_figures_confusions_and_suspects(run: Run, clusters: Collection) -> None:
    printed = run("evaluate", "collection", "--by", "label", "--suspects", "9").out
    assert "1.0000" in printed  # the index's own recall
    assert "\n(all)\t24\t96% (80–99)\t" in printed
    assert "Wilson's 95% intervals" in printed
    assert printed.endswith("share\n23\tcat\t0%\tdog\t100%\n")  # all others agree with their neighbours
    facts = json.loads(run("evaluate", "collection", "--by", "label", "--format", "json").out)
    (evaluation,) = facts["evaluations"]
    cat, dog = evaluation["classes"]
    assert (cat["label"], cat["images"], dog["label"], dog["images"]) == ("cat", 13, "dog", 11)
    assert cat["precision"]["10"]["value"] == pytest.approx(12 / 13)
    assert evaluation["confusions"][1] == {"label": "cat", "neighbour": "dog", "share": pytest.approx(1 / 13)}
    assert facts["suspects"] == []


def test_many_labels_take_a_line_each_and_their_total_comes_last(
    run: Run, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = [f"label number {number:02}" for number in range(85)] * 2
    ids = [f"{number:03}" for number in range(len(labels))]
    add_version(collection, rows(ids, metadata={"label": pa.array(labels)}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("likeness.cli.options.console", Console(width=80, force_terminal=True, color_system=None))
    lines = run("evaluate", "collection", "--by", "label").out.splitlines()
    (header,) = [number for number, line in enumerate(lines) if "precision@1 " in line]
    assert [line[:15] for line in lines[header + 1 : header + 86]] == sorted(set(labels))
    assert lines[header + 86].startswith("(all) ")
    assert len(lines) - header - 86 < 20


def test_two_versions_stand_side_by_side(run: Run, clusters: Collection) -> None:
    add_version(clusters, rows(["23"], rejected={}, metadata={"label": pa.array(["dog"])}), deletes=["00"])
    printed = run("evaluate", "collection", "--by", "label", "--against", "1").out
    assert "1\t000002\thand-made\t23\t23\t" in printed
    assert "2\t000001\thand-made\t24\t23\t" in printed
    assert "cat\t1\t" in printed
    assert "cat\t2\t" in printed
    twice = json.loads(
        run("evaluate", "collection", "--by", "label", "--against", ".//collection", "--format", "json").out
    )
    assert twice["evaluations"][0] == twice["evaluations"][1]


def test_what_cannot_be_evaluated(run: Run, clusters: Collection) -> None:
    assert "has no column 'shape': expected one of image_id" in run("evaluate", "collection", "--by", "shape").err
    assert "does not exist" in run("evaluate", "collection", "--by", "label", "--against", "none").err
    refused = run("evaluate", "collection", "--by", "label", "--against", "7")
    assert refused.code == 2
    assert "--against is 7: no such index version; `likeness versions` lists them" in refused.err
