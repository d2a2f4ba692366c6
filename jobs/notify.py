"""Tells a webhook or a command what became of a run. What goes wrong here is logged, and fails no job."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from jobs.history import JobRun
from jobs.spec import Notify, Target

TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
# Webhooks are posts, which are not retried by default: whoever listens may be told twice.
_RETRY = Retry(
    total=3,
    backoff_factor=1,
    backoff_max=10,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
    respect_retry_after_header=False,  # which may ask for hours, in which the job does not end
)

logger = logging.getLogger(__name__)


class _NotToldError(Exception):
    """Why nobody was told, in words of our own: those of libraries have the address, and with it a secret."""


def notify(targets: Notify, run: JobRun) -> None:
    """Tell whoever is to be told of a run that is over. `busy` and `stopped` count as failures."""
    target = targets.on_success if run.outcome == "succeeded" else targets.on_failure
    if target is None:
        return
    # `text` is what chat services show of a message.
    body = json.dumps({"text": run.text, **run.model_dump(mode="json")}).encode()
    url = target.url and os.path.expandvars(target.url)
    try:
        if url is not None:
            _post(url, body)
        else:
            _run(target, body)
    except (_NotToldError, requests.RequestException, OSError, ValueError) as error:
        why = error if isinstance(error, _NotToldError) else type(error).__name__
        logger.warning("telling %s of run %s failed: %s", "the command" if url is None else _host(url), run.id, why)


def _post(url: str, body: bytes) -> None:
    if not url.startswith(("http://", "https://")):
        raise _NotToldError("expected an http:// or https:// address: is the environment variable set?")
    with requests.Session() as session, _retries_unlogged():
        session.mount(url, HTTPAdapter(max_retries=_RETRY))
        headers = {"Content-Type": "application/json"}
        answer = session.post(url, data=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    if answer.status_code >= 400:
        raise _NotToldError(f"it answered {answer.status_code}")
    if answer.status_code >= 300:  # following one would turn the post into a get
        raise _NotToldError(f"it answered {answer.status_code}: expected the address that it redirects to")


def _run(target: Target, body: bytes) -> None:
    try:
        done = subprocess.run(
            ["sh", "-c", target.command or ""],
            input=body,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _NotToldError(f"it took longer than {COMMAND_TIMEOUT_S:g} seconds") from error
    if done.returncode:
        raise _NotToldError(f"it ended with {done.returncode}: {done.stdout.decode(errors='replace').strip()[-500:]}")


def _host(url: str) -> str:
    """All of an address that is shown: the rest of it, user, path and query, may be a secret."""
    try:
        return urlsplit(url).hostname or "the webhook"
    except ValueError:
        return "the webhook"


@contextmanager
def _retries_unlogged() -> Iterator[None]:
    """urllib3 logs the path, and what follows it, of whatever it tries again."""
    theirs = logging.getLogger("urllib3.connectionpool")
    level = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        theirs.setLevel(level)
