"""Notifications by webhook and command, the metrics file and the history, and how their failures are handled."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from index.collection import Collection, writing
from jobs.fields import Target
from jobs.schedule import notify as notify_module
from jobs.schedule.history import HistoryEntry, history_facts, last_entries, last_success, outcome_of, save
from jobs.schedule.metrics_file import write_metrics
from jobs.schedule.notify import notify
from jobs.spec import Notify
from tests.support.scripted_server import Reply, ScriptedServer, scripted

STARTED = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def make_entry(outcome: Any = "succeeded", message: str | None = None, **fields: Any) -> HistoryEntry:
    begun = HistoryEntry.begin("/pictures", "/collection").model_copy(update={"id": "run-1", "started_at": STARTED})
    ended = {"ended_at": STARTED + timedelta(minutes=5), "index": "000007"}
    return begun.end(outcome, message).model_copy(update=ended | fields)


@pytest.fixture
def hook() -> Iterator[ScriptedServer]:
    with scripted(Reply(data=b"")) as server:
        yield server


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    monkeypatch.setattr(notify_module, "_RETRY", notify_module._RETRY.new(backoff_factor=0))


@pytest.fixture
def max_entries(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit on the history that tests reach at once."""
    monkeypatch.setattr("jobs.schedule.history.MAX_ENTRIES", 9)
    return 9


def answering(*statuses: int) -> list[Reply]:
    return [Reply(status=status, data=b"", headers={"Retry-After": "3600"}) for status in statuses]


def url_of(hook: ScriptedServer) -> str:
    return f"http://user:T0P-SECRET@127.0.0.1:{hook.server_address[1]}/services/T0P-SECRET?token=T0P-SECRET"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "busy", "stopped"])
def test_the_report_is_posted_and_other_outcomes_than_success_are_failures(hook: ScriptedServer, outcome: str) -> None:
    good, message = outcome == "succeeded", None if outcome == "succeeded" else "what happened"
    target = Target(url=url_of(hook))
    for targets in (Notify(on_success=target), Notify(on_failure=target)):
        notify(targets, make_entry(outcome, message, counts={"new": 3}))
    [body] = [request.document for request in hook.requests]
    assert body["text"] == f"likeness: /collection {outcome}: {'index 000007' if good else message}"
    assert (body["outcome"], body["counts"], body["index"]) == (outcome, {"new": 3}, "000007")


def test_a_webhook_is_retried_but_cannot_delay_a_job_with_retry_after(
    hook: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=slept.append, time=time.time))
    for statuses, waits in (((503, 429, 200), [2]), ((429,), [2, 4])):
        hook.replies, hook.requests = answering(*statuses), []
        slept.clear()
        notify(Notify(on_success=Target(url=url_of(hook))), make_entry())
        assert (len(hook.requests), slept) == (2 + len(waits), waits)


@pytest.mark.usefixtures("no_backoff")
def test_a_webhook_that_gives_no_answer_is_said_to_give_none(
    hook: ScriptedServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_module, "TIMEOUT_S", 0.2)
    hook.replies = [Reply(data=b"", silent_s=1)]
    notify(Notify(on_success=Target(url=url_of(hook))), make_entry())
    assert caplog.records[-1].getMessage().endswith("it cannot be reached, or gives no answer within 0.2 seconds")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((status, f"notifying 127.0.0.1 of job run-1 failed: it answered {status}") for status in (404, 500, 302)),
        (
            "http://user:T0P-SECRET@127.0.0.1:9/T0P-SECRET?token=T0P-SECRET",
            "127.0.0.1 of job run-1 failed: it cannot be reached",
        ),
        ("http://no.such.host.invalid/hook?token=T0P-SECRET", "notifying no.such.host.invalid of job run-1 failed"),
        ("http://[T0P-SECRET/hook", "notifying the webhook of job run-1 failed"),
        ("http://127.0.0.1:T0P-SECRET/hook", "127.0.0.1 of job run-1 failed: its address is invalid"),
        ("http://127.0.0.1:99999/T0P-SECRET", "127.0.0.1 of job run-1 failed: its address is invalid"),
        ("http://", "the webhook of job run-1 failed: its address is invalid: expected http:// or https://, a host"),
    ],
)
@pytest.mark.usefixtures("no_backoff")
def test_a_failed_webhook_is_logged_without_its_secret(
    hook: ScriptedServer, caplog: pytest.LogCaptureFixture, url: str | int, message: str
) -> None:
    if isinstance(url, int):
        hook.replies, url = answering(url), url_of(hook)
    notify(Notify(on_success=Target(url=url)), make_entry())
    assert message in caplog.records[-1].getMessage()
    assert "T0P-SECRET" not in caplog.text


def test_an_address_may_come_from_the_environment(
    hook: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    targets = Notify(on_success=Target(url="${LIKENESS_TEST_HOOK}"))
    notify(targets, make_entry())
    assert "the webhook of job run-1 failed: the environment variable LIKENESS_TEST_HOOK is not set" in caplog.text
    monkeypatch.setenv("LIKENESS_TEST_HOOK", url_of(hook))
    notify(targets, make_entry())
    assert len(hook.requests) == 1


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
    notify(Notify(on_success=Target(command=command)), make_entry())
    assert message in caplog.records[-1].getMessage()
    assert not caplog.records[-1].getMessage().endswith(": ")
    assert "T0P-SECRET" not in caplog.text


def metrics(path: Path) -> dict[tuple[str, str], float]:
    samples = [sample for family in text_string_to_metric_families(path.read_text()) for sample in family.samples]
    # With both labels, each job of a collection has its own series.
    assert {(each.labels.pop("collection"), each.labels.pop("source")) for each in samples} == {
        ("/collection", "/pictures")
    }
    return {(each.name.removeprefix("likeness_job_"), "".join(each.labels.values())): each.value for each in samples}


def test_metrics_of_a_success_and_of_the_failure_after_it(tmp_path: Path) -> None:
    path = tmp_path / "likeness.prom"
    success = make_entry(counts={"new": 3, "unchanged": 97}, seconds={"embed": 1.5}, recall=0.995)
    write_metrics(str(path), success, success)
    values = metrics(path)
    ended = (STARTED + timedelta(minutes=5)).timestamp()
    assert values["last_success_timestamp_seconds", ""] == values["last_end_timestamp_seconds", ""] == ended
    assert values["last_duration_seconds", ""] == 300
    assert (values["last_outcome", "succeeded"], values["last_outcome", "failed"]) == (1, 0)
    assert (values["last_images", "new"], values["last_images", "unchanged"]) == (3, 97)
    assert (values["last_stage_seconds", "embed"], values["recall", ""]) == (1.5, 0.995)
    failure = make_entry("failed", ended_at=STARTED + timedelta(days=1))
    write_metrics(str(path), failure, success)
    values = metrics(path)
    assert values["last_success_timestamp_seconds", ""] == ended
    assert values["last_end_timestamp_seconds", ""] == (STARTED + timedelta(days=1)).timestamp()
    assert (values["last_outcome", "succeeded"], values["last_outcome", "failed"]) == (0, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["likeness.prom"]


def test_without_a_known_success_the_file_keeps_that_of_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "likeness.prom"
    success, failure = make_entry(), make_entry("failed", ended_at=STARTED + timedelta(days=1))
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


def test_credentials_in_addresses_are_not_recorded() -> None:
    entry = HistoryEntry.begin("s3://KEY:secret@bucket/pictures", "s3://KEY:secret@bucket/c?region=eu-west-1")
    assert (entry.source, entry.collection) == ("s3://bucket/pictures", "s3://bucket/c?region=eu-west-1")
    assert outcome_of(ValueError("s3://KEY:secret@bucket is empty")) == ("failed", "s3://bucket is empty")


def test_the_oldest_entries_are_removed(collection: Collection, max_entries: int) -> None:
    for number in range(max_entries + 3):
        save(collection.storage, make_entry(id=f"{number:04d}"))
    assert [entry.id for entry in last_entries(collection, 2)] == [f"{max_entries + 1:04d}", f"{max_entries + 2:04d}"]
    assert len(last_entries(collection, 10 * max_entries)) == max_entries
    (Path(collection.location) / "history" / f"{max_entries + 2:04d}.json").write_text("{}")
    assert [entry.id for entry in last_entries(collection, 2)] == [f"{max_entries + 1:04d}"]
    assert Collection.create_or_open(collection.location) == collection  # the history's files are the collection's own


def test_the_last_success_of_each_source_is_kept(collection: Collection, max_entries: int) -> None:
    storage = collection.storage
    entries = [make_entry(), make_entry(), make_entry(source="/others"), make_entry("failed")]
    for number, entry in enumerate([*entries, *[make_entry("failed", source="/third")] * (max_entries + 4)]):
        save(storage, entry.model_copy(update={"id": f"{number:04d}"}))
    successes = [last_success(storage, source) for source in ("/pictures", "/others", "/third")]
    assert [entry and entry.id for entry in successes] == ["0001", "0002", None]
    stored = sorted(path.stem for path in Path(collection.location).glob("history/*.json"))
    assert (stored[:3], len(stored)) == (["0001", "0002", "0008"], max_entries + 2)


def test_a_job_without_an_end_is_running_while_it_holds_the_lease(collection: Collection) -> None:
    save(collection.storage, HistoryEntry.begin("/pictures", collection.location))
    with writing(collection, "reembed"):
        assert [each["outcome"] for each in history_facts(collection, last_entries(collection, 1))] == ["running"]
    assert [each["outcome"] for each in history_facts(collection, last_entries(collection, 1))] == ["unfinished"]
