"""Sends JSON to a webhook or a command, such as a job's outcome: then errors are logged, and never fail the job."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from jobs.fields import Target
from jobs.schedule.history import HistoryEntry
from jobs.spec import Notify

TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
# Webhooks are POST requests, which are not retried by default: a receiver may be notified twice.
_RETRY = Retry(
    total=3,
    backoff_factor=1,
    backoff_max=10,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
    respect_retry_after_header=False,  # it may ask for hours, during which the job would not end
)

logger = logging.getLogger(__name__)


class NotifyError(Exception):
    """Who was not reached and why, in our own words: messages of libraries contain the address, which may be secret."""


def notify(targets: Notify, entry: HistoryEntry) -> None:
    """Send the notification for a finished job. `busy` and `stopped` count as failures."""
    target = targets.on_success if entry.outcome == "succeeded" else targets.on_failure
    if target is None:
        return
    # Chat services show `text` as the message.
    body = json.dumps({"text": entry.text, **entry.model_dump(mode="json")}).encode()
    try:
        send(target, body)
    except NotifyError as error:
        logger.warning("notifying %s of job %s failed: %s", error.args[0], entry.id, error.args[1])


def send(target: Target, body: bytes, key: str | None = None) -> None:
    """Post JSON to a webhook, with an `Idempotency-Key` if there is a key, or pass it to a command. NotifyError has who
    was not reached, and why.
    """
    try:
        if not (why := target.problem):
            why = _post(target.address, body, key) if target.url else _run(target.command or "", body)
    except (requests.ConnectionError, requests.Timeout):
        why = f"it cannot be reached, or gives no answer within {TIMEOUT_S:g} seconds"
    except ValueError:
        why = "its address is invalid: expected http:// or https://, a host, and a port of at most 65535 if it has one"
    except OSError as error:  # also the other errors of requests
        why = type(error).__name__
    if why:
        raise NotifyError(_host(target.address) if target.url else "the command", why)


def _post(url: str, body: bytes, key: str | None) -> str | None:
    """Why the webhook has refused, if it has."""
    with requests.Session() as session, _mute_retry_log():
        session.mount(url, HTTPAdapter(max_retries=_RETRY))
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        answer = session.post(url, data=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    if answer.status_code < 300:
        return None
    # Following a redirect would turn the POST into a GET.
    advice = ": expected the address that it redirects to" if answer.status_code < 400 else ""
    return f"it answered {answer.status_code}{advice}"


def _run(command: str, body: bytes) -> str | None:
    """Why the command has failed, if it has."""
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            input=body + b"\n",  # so that `cat >> FILE` writes a line
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {COMMAND_TIMEOUT_S:g} seconds"
    if not done.returncode:
        return None
    output = done.stdout.decode(errors="replace").strip()[-500:]
    return f"it ended with {done.returncode}" + (f": {output}" if output else "")


def _host(url: str) -> str:
    """The only part of an address that is shown: user, path and query may be secret."""
    try:
        return urlsplit(url).hostname or "the webhook"
    except ValueError:
        return "the webhook"


@contextmanager
def _mute_retry_log() -> Iterator[None]:
    """Mutes urllib3's log of retries, which contains the path and query."""
    retry_logger = logging.getLogger("urllib3.connectionpool")
    level = retry_logger.level
    retry_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        retry_logger.setLevel(level)
