"""Telling of a run: webhooks, commands and metrics, and what goes wrong with them."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from index.collection import Collection, writing
from jobs.schedule import notify as notify_module
from jobs.schedule.history import MAX_ENTRIES, HistoryEntry, history_facts, last_entries, last_success, outcome_of, save
from jobs.schedule.metrics_file import write_metrics
from jobs.schedule.notify import notify
from jobs.spec import Notify, Target
from tests.support.servers.scripted_server import Reply, ScriptedServer, scripted

STARTED = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def a_run(outcome: Any = "succeeded", message: str | None = None, **fields: Any) -> HistoryEntry:
    begun = HistoryEntry.begin("/pictures", "/collection").model_copy(update={"id": "run-1", "started_at": STARTED})
    ended = {"ended_at": STARTED + timedelta(minutes=5), "index": "000007"}
    return begun.end(outcome, message).model_copy(update=ended | fields)


@pytest.fixture
def hook() -> Iterator[ScriptedServer]:
    with scripted(Reply(data=b"")) as server:
        yield server


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits before it tries again."""
    monkeypatch.setattr(notify_module, "_RETRY", notify_module._RETRY.new(backoff_factor=0))


def answering(*statuses: int) -> list[Reply]:
    return [Reply(status=status, data=b"", headers={"Retry-After": "3600"}) for status in statuses]


def url_of(hook: ScriptedServer) -> str:
    return f"http://user:T0P-SECRET@127.0.0.1:{hook.server_address[1]}/services/T0P-SECRET?token=T0P-SECRET"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "busy", "stopped"])
def test_the_report_is_posted_and_whatever_is_no_success_is_a_failure(hook: ScriptedServer, outcome: str) -> None:
    good, message = outcome == "succeeded", None if outcome == "succeeded" else "what happened"
    target = Target(url=url_of(hook))
    for targets in (Notify(on_success=target), Notify(on_failure=target)):
        notify(targets, a_run(outcome, message, counts={"new": 3}))
    [body] = [asked.document for asked in hook.asked]
    assert body["text"] == f"likeness: /collection {outcome}: {'index 000007' if good else message}"
    assert (body["outcome"], body["counts"], body["index"]) == (outcome, {"new": 3}, "000007")


@pytest.mark.usefixtures("at_once")
def test_a_hook_that_is_down_for_a_moment_is_asked_again(hook: ScriptedServer) -> None:
    hook.replies = answering(503, 429, 200)
    notify(Notify(on_success=Target(url=url_of(hook))), a_run())
    assert len(hook.asked) == 3


def test_a_hook_that_asks_for_an_hour_holds_no_job(hook: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=slept.append, time=time.time))
    hook.replies = answering(429)
    notify(Notify(on_success=Target(url=url_of(hook))), a_run())
    assert (len(hook.asked), slept) == (4, [2, 4])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        *((status, f"notifying 127.0.0.1 of job run-1 failed: it answered {status}") for status in (404, 500, 302)),
        ("http://user:T0P-SECRET@127.0.0.1:9/T0P-SECRET?token=T0P-SECRET", "notifying 127.0.0.1 of job run-1 failed"),
        ("http://no.such.host.invalid/hook?token=T0P-SECRET", "notifying no.such.host.invalid of job run-1 failed"),
        ("http://[T0P-SECRET/hook", "notifying the webhook of job run-1 failed"),
        ("http://127.0.0.1:T0P-SECRET/hook", "notifying 127.0.0.1 of job run-1 failed"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_a_hook_that_refuses_or_is_not_there_is_logged_without_its_secret(
    hook: ScriptedServer, caplog: pytest.LogCaptureFixture, url: str | int, told: str
) -> None:
    if isinstance(url, int):
        hook.replies, url = answering(url), url_of(hook)
    notify(Notify(on_success=Target(url=url)), a_run())
    assert told in caplog.records[-1].getMessage()
    assert "T0P-SECRET" not in caplog.text


def test_an_address_may_come_from_the_environment(
    hook: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    targets = Notify(on_success=Target(url="${LIKENESS_TEST_HOOK}"))
    notify(targets, a_run())
    assert "is the environment variable set?" in caplog.text
    monkeypatch.setenv("LIKENESS_TEST_HOOK", url_of(hook))
    notify(targets, a_run())
    assert len(hook.asked) == 1


def test_a_command_gets_the_report_on_its_stdin(tmp_path: Path) -> None:
    notify(Notify(on_failure=Target(command=f"cat > {tmp_path}/told")), a_run("failed", "no disk"))
    told = json.loads((tmp_path / "told").read_text())
    assert (told["outcome"], told["message"], told["id"]) == ("failed", "no disk", "run-1")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no printer >&2; exit 3", "it ended with 3: no printer"),
        ("exec sleep 30 # T0P-SECRET", "it took longer than 0.2 seconds"),
        ("exit 4 <&-", "it ended with 4"),
    ],
)
def test_a_command_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.setattr(notify_module, "COMMAND_TIMEOUT_S", 0.2 if "sleep" in command else 60)
    notify(Notify(on_success=Target(command=command)), a_run())
    assert message in caplog.records[-1].getMessage()
    assert "T0P-SECRET" not in caplog.text


def metrics(path: Path) -> dict[tuple[str, str], float]:
    samples = [sample for family in text_string_to_metric_families(path.read_text()) for sample in family.samples]
    # With both, jobs of one collection make series of their own.
    assert {(each.labels.pop("collection"), each.labels.pop("source")) for each in samples} == {
        ("/collection", "/pictures")
    }
    return {(each.name.removeprefix("likeness_job_"), "".join(each.labels.values())): each.value for each in samples}


def test_metrics_of_a_success_and_of_the_failure_after_it(tmp_path: Path) -> None:
    path = tmp_path / "likeness.prom"
    success = a_run(counts={"new": 3, "unchanged": 97}, seconds={"embed": 1.5}, recall=0.995)
    write_metrics(str(path), success, success)
    found = metrics(path)
    ended = (STARTED + timedelta(minutes=5)).timestamp()
    assert found["last_success_timestamp_seconds", ""] == found["last_end_timestamp_seconds", ""] == ended
    assert found["last_duration_seconds", ""] == 300
    assert (found["last_outcome", "succeeded"], found["last_outcome", "failed"]) == (1, 0)
    assert (found["last_images", "new"], found["last_images", "unchanged"]) == (3, 97)
    assert (found["last_stage_seconds", "embed"], found["recall", ""]) == (1.5, 0.995)
    failure = a_run("failed", ended_at=STARTED + timedelta(days=1))
    write_metrics(str(path), failure, success)
    found = metrics(path)
    assert found["last_success_timestamp_seconds", ""] == ended
    assert found["last_end_timestamp_seconds", ""] == (STARTED + timedelta(days=1)).timestamp()
    assert (found["last_outcome", "succeeded"], found["last_outcome", "failed"]) == (0, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["likeness.prom"]


def test_while_no_success_is_known_the_file_keeps_what_it_says_of_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "likeness.prom"
    success, failure = a_run(), a_run("failed", ended_at=STARTED + timedelta(days=1))
    write_metrics(str(path), failure, None)
    assert ("last_success_timestamp_seconds", "") not in metrics(path)
    write_metrics(str(path), success, success)
    write_metrics(str(path), failure, None)
    assert metrics(path)["last_success_timestamp_seconds", ""] == (STARTED + timedelta(minutes=5)).timestamp()
    assert metrics(path)["last_outcome", "failed"] == 1
    write_metrics(str(path), failure.model_copy(update={"source": "/others"}), None)
    assert "last_success_timestamp_seconds{" not in path.read_text()
    path.write_text("no metrics {")
    write_metrics(str(path), failure, None)
    assert ("last_success_timestamp_seconds", "") not in metrics(path)


def test_credentials_in_addresses_are_told_to_nobody() -> None:
    run = HistoryEntry.begin("s3://KEY:secret@bucket/pictures", "s3://KEY:secret@bucket/c?region=eu-west-1")
    assert (run.source, run.collection) == ("s3://bucket/pictures", "s3://bucket/c?region=eu-west-1")
    assert outcome_of(ValueError("s3://KEY:secret@bucket is empty")) == ("failed", "s3://bucket is empty")


def test_runs_are_remembered_and_the_oldest_forgotten(collection: Collection) -> None:
    for number in range(MAX_ENTRIES + 3):
        save(collection.storage, a_run(id=f"{number:04d}"))
    assert [run.id for run in last_entries(collection, 2)] == [f"{MAX_ENTRIES + 1:04d}", f"{MAX_ENTRIES + 2:04d}"]
    assert len(last_entries(collection, 10 * MAX_ENTRIES)) == MAX_ENTRIES
    (Path(collection.location) / "history" / f"{MAX_ENTRIES + 2:04d}.json").write_text("{}")
    assert [run.id for run in last_entries(collection, 2)] == [f"{MAX_ENTRIES + 1:04d}"]
    assert Collection.create_or_open(collection.location) == collection  # what jobs write down is the collection's own


def test_the_last_success_of_each_source_is_not_forgotten(collection: Collection) -> None:
    storage = collection.storage
    runs = [a_run(), a_run(), a_run(source="/others"), a_run("failed")]
    for number, run in enumerate([*runs, *[a_run("failed", source="/third")] * (MAX_ENTRIES + 4)]):
        save(storage, run.model_copy(update={"id": f"{number:04d}"}))
    found = [last_success(storage, source) for source in ("/pictures", "/others", "/third")]
    assert [run and run.id for run in found] == ["0001", "0002", None]
    kept = sorted(path.stem for path in Path(collection.location).glob("history/*.json"))
    assert (kept[:3], len(kept)) == (["0001", "0002", "0008"], MAX_ENTRIES + 2)


def test_a_run_without_an_end_runs_while_it_holds_the_lease(collection: Collection) -> None:
    run = HistoryEntry.begin("/pictures", collection.location)
    save(collection.storage, run)
    with writing(collection, "reembed"):
        assert [each["outcome"] for each in history_facts(collection, last_entries(collection, 1))] == ["running"]
    assert [each["outcome"] for each in history_facts(collection, last_entries(collection, 1))] == ["unfinished"]
