"""Schedules: when runs are due, and that they run one at a time, each in its own process, and are always recorded."""

import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from benchmarks.common.waiting import eventually
from index.collection import Collection, writing
from index.collection.lease import Lease
from index.errors import CollectionError
from jobs.errors import SourceError, UsageError
from jobs.schedule.history import HistoryEntry, last_entries, read_output
from jobs.schedule.job_process import ScheduledJob
from jobs.schedule.run_job import finish, run_job
from jobs.schedule.scheduler import NextTime, parse_cron, run_schedule
from jobs.schedule.spec_file import read_spec
from jobs.spec import JobSpec
from jobs.update import Update
from tests.support.command_line import Run
from tests.support.nights.quiet_night import make_job


def next_times(cron: str, number: int, zone: str, start: str) -> list[datetime]:
    next_time, times = parse_cron(cron, zone), [datetime.fromisoformat(start)]
    for _ in range(number):
        times.append(next_time(times[-1]))
    return times[1:]


def test_a_day_that_a_zone_skipped_does_not_come_twice() -> None:
    times = next_times("0 3 * * *", 2, "Pacific/Apia", "2011-12-29T23:00:00+00:00")
    assert [f"{due:%d %H:%M%z}" for due in times] == ["31 03:00+1400", "01 03:00+1400"]


def each_of(times: list[datetime]) -> NextTime:
    return lambda after: next((time for time in times if time > after), after + timedelta(days=1))


@pytest.mark.parametrize(
    ("cron", "times"),
    [
        ("0 3 * * *", ["Sun 11-22 03:00", "Mon 11-23 03:00"]),
        ("*/20 * * * *", ["Sat 11-21 12:20", "Sat 11-21 12:40"]),
        ("30 4 1 * *", ["Tue 12-01 04:30", "Fri 01-01 04:30"]),
        ("0 3 * * 0", ["Sun 11-22 03:00", "Sun 11-29 03:00"]),  # crontab's 0 and 7 are Sunday
        ("0 3 * * 7", ["Sun 11-22 03:00", "Sun 11-29 03:00"]),
        ("0 3 * * 1-5", ["Mon 11-23 03:00", "Tue 11-24 03:00"]),
        ("0 3 * * fri-sun", ["Sun 11-22 03:00", "Fri 11-27 03:00", "Sat 11-28 03:00", "Sun 11-29 03:00"]),
        ("0 3 * * 5-7", ["Sun 11-22 03:00", "Fri 11-27 03:00", "Sat 11-28 03:00", "Sun 11-29 03:00"]),
        ("0 3 * * */2", ["Sun 11-22 03:00", "Tue 11-24 03:00", "Thu 11-26 03:00", "Sat 11-28 03:00"]),
        ("0 3 * * Mon,3", ["Mon 11-23 03:00", "Wed 11-25 03:00"]),
    ],
)
def test_times_are_crontabs(cron: str, times: list[str]) -> None:
    due_times = next_times(cron, len(times), "UTC", "2026-11-21T12:00:00+00:00")
    assert [f"{due:%a %m-%d %H:%M}" for due in due_times] == times


@pytest.mark.parametrize(
    ("cron", "start", "times"),
    [
        # The clocks go back from 03:00 to 02:00 on the 25th.
        ("30 2 * * *", "10-23T23:00", ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]),
        ("*/30 2 * * *", "10-24T12:00", ["25 02:00+0200", "25 02:30+0200", "26 02:00+0100"]),
        ("0 3 * * *", "10-23T23:00", ["24 03:00+0200", "25 03:00+0100"]),
        ("30 2 * * *", "10-25T01:10", ["26 02:30+0100"]),  # started in the repeated hour
        ("*/30 * * * *", "10-25T00:10", ["25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100"]),
        # They go forward from 02:00 to 03:00 on the 29th.
        ("30 2 * * *", "03-28T00:00", ["28 02:30+0100", "29 03:30+0200", "30 02:30+0200"]),
        ("30 2 * * *", "03-29T01:10", ["29 03:30+0200"]),  # started after the hour that is skipped
        ("*/30 2-3 * * *", "03-29T00:00", ["29 03:00+0200", "29 03:30+0200", "30 02:00+0200"]),
    ],
)
def test_times_follow_the_time_zone_and_named_hours_come_once_a_night(cron: str, start: str, times: list[str]) -> None:
    due_times = next_times(cron, len(times), "Europe/Berlin", f"2026-{start}:00+00:00")
    assert [f"{due:%d %H:%M%z}" for due in due_times] == times


@pytest.mark.parametrize(
    ("zone", "start", "due"),
    [  # in the hour that the clock shows twice, and the half hour of Lord Howe
        ("Europe/Berlin", "2050-10-30T00:10", "2050-10-30 02:30:00+02:00"),
        ("Europe/Berlin", "2050-10-30T01:10", "2050-10-30 02:30:00+01:00"),
        ("Europe/Berlin", "2050-10-30T01:40", "2050-10-30 03:00:00+01:00"),
        ("America/New_York", "2050-11-06T05:40", "2050-11-06 01:00:00-05:00"),
        ("Australia/Lord_Howe", "2050-04-02T14:40", "2050-04-03 01:30:00+10:30"),
        ("Asia/Kolkata", "2050-10-30T01:10", "2050-10-30 07:00:00+05:30"),
    ],
)
def test_a_run_waits_for_its_time_in_a_repeated_hour_too(
    caplog: pytest.LogCaptureFixture, zone: str, start: str, due: str
) -> None:
    caplog.set_level("INFO", "jobs.schedule.scheduler")
    stop = Mock(is_set=lambda: False, wait=lambda *_: True)
    [time] = next_times("*/30 * * * *", 1, zone, f"{start}:00+00:00")
    run_schedule(Mock(), lambda _: time, stop)
    assert caplog.messages == [f"the next run is at {due}"]


def test_jitter_is_never_early() -> None:
    due = datetime.now(UTC) + timedelta(seconds=0.3)
    stop, started = threading.Event(), list[datetime]()

    def run() -> None:
        started.append(datetime.now(UTC))
        stop.set()

    run_schedule(Mock(run=run), each_of([due]), stop, jitter_s=0.2)
    assert started[0] >= due


def test_a_run_that_fails_does_not_end_the_schedule() -> None:
    stop, now, runs = threading.Event(), datetime.now(UTC), list[int]()

    def run() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            raise ValueError("a mistake of ours")
        stop.set()

    run_schedule(Mock(run=run), each_of([now + timedelta(seconds=0.2 * number) for number in range(1, 9)]), stop)
    assert runs == [0, 1]


def test_what_passed_while_the_machine_slept_is_one_run_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    due = datetime.now(UTC) - timedelta(days=20_000)
    stop, runs, next_times = threading.Event(), list[int](), iter([due, due + timedelta(seconds=1)])

    def run() -> None:
        runs.append(len(runs))
        if len(runs) == 2:
            stop.set()

    soon = timedelta(seconds=0.1)
    run_schedule(Mock(run=run), lambda after: next(next_times, max(after, datetime.now(UTC)) + soon), stop)
    assert (runs, len(caplog.messages)) == ([0, 1], 1)
    assert caplog.messages[0].startswith(f"skipping the runs that were due since {due + timedelta(seconds=1)}: ")


@pytest.mark.parametrize(
    ("cron", "zone", "message"),
    [
        ("0 3 * *", "UTC", r"--cron is '0 3 \* \*': expected five fields"),
        ("0 25 * * *", "UTC", r"--cron is .*25.*: Bad hour"),
        ("0 3 * * 8", "UTC", "Bad day-of-week"),
        ("0 3 * * fry", "UTC", "--cron is '0 3 \\* \\* fry': Bad day-of-week"),
        ("0 3 31 2 *", "UTC", "Bad day-of-month"),
        ("0 3 1 * 1", "UTC", "expected a day of the month or a weekday, and \\* for the other"),
        ("0 3 * * *", "Mars/Olympus", "--timezone is 'Mars/Olympus': expected a name such as Europe/Berlin or UTC"),
        ("0 3 * * *", "../etc/passwd", "--timezone is"),
        ("0 3 * * *", None, "without --timezone, TZ is 'CET-1CEST': expected a name such as Europe/Berlin or UTC"),
    ],
)
def test_invalid_schedules(cron: str, zone: str | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST")
    monkeypatch.setattr("tzlocal.unix._cache_tz", None)
    with pytest.raises(UsageError, match=message):
        parse_cron(cron, zone)


NOTIFY = """\
notify:
  on_success: {command: cat > succeeded.json}
  on_failure: {command: cat > failed.json}
metrics_file: job.prom
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("source: pictures\ncollection: collection\nmodel: demo\n" + NOTIFY)
    (tmp_path / "pictures").mkdir()
    return path


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, spec: Path) -> Callable[[str], ScheduledJob]:
    """A scheduled job whose process runs this Python instead of the command."""
    monkeypatch.chdir(spec.parent)
    Collection.create_or_open(str(spec.parent / "collection"))

    def make(code: str) -> ScheduledJob:
        monkeypatch.setattr("jobs.schedule.job_process.COMMAND", (sys.executable, "-c", code))
        return ScheduledJob(spec, io.StringIO())

    return make


def runs_of(spec: Path) -> list[HistoryEntry]:
    return last_entries(Collection.open(str(spec.parent / "collection")), 100)


KILLED = "killed by SIGKILL, as happens when memory runs out"

BEGIN = """
import os, signal, sys
from pathlib import Path
from index.collection import Collection
from jobs.schedule.history import HistoryEntry, save
signal.signal(signal.SIGINT, signal.SIG_IGN)  # like a process that a shell has started in the background
signal.signal(signal.SIGTERM, signal.default_int_handler)  # like the command
storage = Collection.open("collection").storage
run = HistoryEntry.begin("pictures", str(Path("collection").absolute()))
save(storage, run)
print("working", flush=True)
"""


BAD_SPEC = """
from pathlib import Path
Path("job.yaml").write_text("nonsense")  # as if it had been edited meanwhile
print("line 1: nonsense\\n")
raise SystemExit(2)
"""


@pytest.mark.parametrize(
    ("code", "outcome", "message", "output"),
    [
        (BEGIN + "save(storage, run.end('succeeded', 'all well'))", "succeeded", "all well", "working\n"),
        (BEGIN + "os.kill(os.getpid(), signal.SIGKILL)", "failed", KILLED, "working\n"),
        (BAD_SPEC, "failed", "ended with 2: line 1: nonsense", "line 1: nonsense\n\n"),
        # A success that could not be recorded is not a failure.
        (BEGIN + "print('done')", "succeeded", None, "working\ndone\n"),
        ("print('done')", "succeeded", None, "done\n"),
    ],
    ids=["succeeds", "is killed", "fails before it begins", "does not record its end", "records nothing"],
)
def test_a_run_is_recorded_with_its_output_and_notified_once(
    child: Callable[[str], ScheduledJob], spec: Path, code: str, outcome: str, message: str | None, output: str
) -> None:
    child(code).run()
    [run] = runs_of(spec)
    assert (run.outcome, run.message) == (outcome, message)
    assert read_output(Collection.open(run.collection).storage, run.id) == output
    assert not (spec.parent / "succeeded.json").exists()  # a run itself sends the notification of its success
    assert (spec.parent / "failed.json").exists() == (outcome == "failed")
    if outcome == "failed":
        assert json.loads((spec.parent / "failed.json").read_text())["id"] == run.id
        assert 'outcome="failed",source=' in (spec.parent / "job.prom").read_text()


FAILS = """
import sys
from jobs.embedding.report import Report
with open(sys.argv[-1], "w") as report:
    report.write(Report(source="pictures", collection="collection").failure_json("failed", "no source"))
raise SystemExit(2)
"""


def test_a_run_without_a_collection_has_sent_its_notification_itself(
    child: Callable[[str], ScheduledJob], spec: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = child(FAILS)
    (spec.parent / "collection" / "runs").rmdir()
    job.run()
    assert (caplog.messages, (spec.parent / "failed.json").exists()) == ([], False)


def test_an_edit_during_a_run_changes_only_who_is_notified_of_it(
    child: Callable[[str], ScheduledJob], spec: Path
) -> None:
    edited = "source: pictures\ncollection: other\nnotify: {on_failure: {command: cat > told.json}}\n"
    job = child(f"from pathlib import Path; Path('job.yaml').write_text({edited!r}); raise SystemExit(1)")
    other = Collection.create_or_open(str(spec.parent / "other"))
    job.run()
    [run] = runs_of(spec)
    assert json.loads((spec.parent / "told.json").read_text())["id"] == run.id
    assert (last_entries(other, 1), (spec.parent / "failed.json").exists()) == ([], False)
    job.run()
    assert [each.collection for each in last_entries(other, 9)] == [other.location]


def test_a_run_that_cannot_be_started_is_recorded_and_notified(
    child: Callable[[str], ScheduledJob], spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = child("")
    monkeypatch.setattr("jobs.schedule.job_process.COMMAND", ("/no/such/python",))
    job.run()
    [run] = runs_of(spec)
    assert run.outcome == "failed"
    assert run.message == "could not be started: [Errno 2] No such file or directory: '/no/such/python'"
    assert json.loads((spec.parent / "failed.json").read_text())["id"] == run.id


def test_runs_do_not_overlap_and_stopping_interrupts_one(child: Callable[[str], ScheduledJob], spec: Path) -> None:
    job = child(
        BEGIN + "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n"
        "    save(storage, run.end('stopped', 'on request'))\n    sys.exit(130)"
    )
    stop = threading.Event()
    soon = timedelta(seconds=0.1)
    thread = threading.Thread(target=run_schedule, args=(job, lambda after: after + soon, stop))
    thread.start()
    try:
        eventually(lambda: [run.outcome for run in runs_of(spec)] == ["running"], "a run has begun", 120)
        time.sleep(0.5)  # five more runs were due
    finally:
        stop.set()
        thread.join(timeout=60)
    assert not thread.is_alive()
    assert [(run.outcome, run.message) for run in runs_of(spec)] == [("stopped", "on request")]


@pytest.mark.parametrize(("end", "outcome"), [(ScheduledJob.stop, "stopped"), (ScheduledJob.kill, "failed")])
def test_a_run_that_does_not_stop_is_killed(
    child: Callable[[str], ScheduledJob],
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[ScheduledJob], None],
    outcome: str,
) -> None:
    monkeypatch.setattr("jobs.schedule.job_process.STOP_S", 0.2)
    job = child(BEGIN.replace("signal.default_int_handler", "signal.SIG_IGN") + "import time\ntime.sleep(600)")
    thread = threading.Thread(target=job.run)
    thread.start()
    eventually(lambda: bool(runs_of(spec)), "a run has begun", 120)
    end(job)
    thread.join(timeout=60)
    assert [(run.outcome, run.message) for run in runs_of(spec)] == [(outcome, KILLED)]
    if outcome == "stopped":
        job.run()
        assert len(runs_of(spec)) == 1  # no other run is started


def test_a_scheduler_without_a_run_ends_on_sigterm(spec: Path) -> None:
    command = [sys.executable, "-m", "likeness", "schedule", str(spec), "--cron", "0 3 * * *", "--timezone", "UTC"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as scheduler:
        assert scheduler.stderr is not None
        assert "the next run is at" in scheduler.stderr.readline()
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(timeout=60) == 0


@pytest.mark.parametrize("error", [CollectionError("manifest damaged"), OSError("no such device")])
def test_versions_that_cannot_be_pruned_are_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("jobs.schedule.run_job.prune", Mock(side_effect=error))
    update = Update(spec=read_spec(make_job(tmp_path)), console=Console(quiet=True))
    run_job(update)
    report = update.report
    assert report.note == f"old index versions stay for now: {error}"
    assert [(run.outcome, run.message) for run in runs_of(tmp_path / "job.yaml")] == [("succeeded", report.note)]


def test_a_job_has_one_lease_to_its_last_annotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, others = Lease.release, list[Lease]()

    def release_to_another(lease: Lease) -> None:
        release(lease)
        others.append(Lease.acquire(lease.storage, "compact"))

    job = make_job(tmp_path)
    job.write_text(job.read_text() + "annotations: [{name: q, quality: true}]\n")
    update = Update(spec=read_spec(job), console=Console(quiet=True))
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "release", release_to_another)
        run_job(update)
    [other] = others
    release(other)
    [entry] = runs_of(tmp_path / "job.yaml")
    assert (entry.outcome, entry.index, update.report.annotated["q"].embedded) == ("succeeded", "000002", 3)


def test_a_first_job_that_fails_says_only_what_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = JobSpec(source=str(tmp_path / "gone"), collection=str(tmp_path / "collection"), model="demo")
    with pytest.raises(SourceError, match="gone does not exist"):
        run_job(Update(spec=spec, console=Console(quiet=True)))
    assert caplog.messages == []


@pytest.mark.parametrize("error", [CollectionError("s3://bucket/c cannot be read (403)"), OSError("no route to host")])
def test_the_last_success_is_kept_while_the_collection_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = make_job(tmp_path)
    job.write_text(job.read_text() + "metrics_file: job.prom\n")
    spec = read_spec(job)
    success = HistoryEntry.begin(spec.source, spec.collection).end("succeeded")
    finish(spec, success)
    last = re.findall("(?m)^likeness_job_last_success_timestamp_seconds.*", (tmp_path / "job.prom").read_text())
    assert len(last) == 1
    monkeypatch.setattr(Collection, "open", Mock(side_effect=error))
    finish(spec, success.end("failed"))
    metrics = (tmp_path / "job.prom").read_text()
    assert last[0] in metrics
    assert f'outcome="failed",source="{tmp_path}/pictures"}} 1.0' in metrics


def test_jobs_from_a_file_with_their_history_notifications_and_metrics(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers are those of pytest's process
    monkeypatch.chdir(tmp_path)
    job = make_job(tmp_path)
    job.write_text(job.read_text() + NOTIFY)

    def notification(outcome: str) -> dict[str, Any]:
        return dict(json.loads((tmp_path / f"{outcome}.json").read_text()))

    assert run("history", "collection").out.startswith("the history is empty")
    assert run("reembed", "--spec", "job.yaml", "--dry-run").code == 0
    assert run("history", "collection").out.startswith("the history is empty")
    (tmp_path / "pictures" / "red.png").unlink()
    done = run("reembed", "--spec", "job.yaml")
    assert done.code == 3, done.err
    failed = notification("failed")
    assert (failed["outcome"], failed["message"][:7]) == ("failed", "1 of th")
    job.write_text(job.read_text() + "max_missing: 0.5\n")
    done = run("reembed", "--spec", "job.yaml")
    assert done.code == 0, done.err
    succeeded = notification("succeeded")
    assert (succeeded["outcome"], succeeded["index"]) == ("succeeded", "000002")
    counts = {name: number for name, number in succeeded["counts"].items() if number}
    assert counts == {"listed": 2, "unchanged": 2, "missing": 1, "deleted": 1}
    assert 'change="deleted",collection=' in (tmp_path / "job.prom").read_text()
    monkeypatch.setattr("jobs.schedule.run_job.WAIT_S", 0.0)
    with writing(Collection.open(str(tmp_path / "collection")), "compact"):
        assert run("reembed", "--spec", "job.yaml").code == 75
    assert notification("failed")["outcome"] == "busy"
    jobs = json.loads(run("history", "collection", "--format", "json").out)
    assert [job["outcome"] for job in jobs] == ["failed", "succeeded", "busy"]
    table = run("history", "collection", "--last", "2").out
    assert re.findall(r"(?m)^\d{8}T\d{6}Z-\w{4}\t\S+\t(\w+)", table) == ["succeeded", "busy"]
    assert run("history", "collection", "--log", "no-such").code == 2
