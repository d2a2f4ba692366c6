"""Tells a webhook or a command what became of a run. What goes wrong here is logged, and fails no job."""

from __future__ import annotations

import json
import logging
import os
import subprocess
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
    total=3, backoff_factor=1, backoff_max=10, status_forcelist=(429, 500, 502, 503, 504), allowed_methods=None
)

logger = logging.getLogger(__name__)


def notify(targets: Notify, run: JobRun) -> None:
    """Tell whoever is to be told of a run that is over. `busy` and `stopped` count as failures."""
    target = targets.on_success if run.outcome == "succeeded" else targets.on_failure
    if target is None:
        return
    # `text` is what chat services show of a message.
    body = json.dumps({"text": run.text, **run.model_dump(mode="json")}).encode()
    try:
        if target.url is not None:
            _post(os.path.expandvars(target.url), body)
        else:
            _run(target, body)
    except (requests.RequestException, OSError, ValueError, subprocess.SubprocessError) as error:
        where = "the command" if target.url is None else urlsplit(target.url).netloc  # its path may be a secret
        logger.warning("telling %s of run %s failed: %s", where, run.id, _without(target, error))


def _post(url: str, body: bytes) -> None:
    if not url.startswith(("http://", "https://")):
        raise ValueError("expected an http:// or https:// address: is the environment variable set?")
    with requests.Session() as session:
        session.mount(url, HTTPAdapter(max_retries=_RETRY))
        headers = {"Content-Type": "application/json"}
        answer = session.post(url, data=body, headers=headers, timeout=TIMEOUT_S, allow_redirects=False)
    answer.raise_for_status()
    if answer.status_code >= 300:  # following one would turn the post into a get
        raise ValueError(f"it answered {answer.status_code}: expected the address that it redirects to")


def _run(target: Target, body: bytes) -> None:
    done = subprocess.run(
        ["sh", "-c", target.command or ""],
        input=body,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise OSError(f"it ended with {done.returncode}: {done.stdout.decode(errors='replace').strip()[-500:]}")


def _without(target: Target, error: Exception) -> str:
    """The error without the address, which names a secret in many services."""
    if target.url is None:
        return str(error)
    path = urlsplit(os.path.expandvars(target.url)).path
    return str(error).replace(path, "/…") if len(path) > 1 else str(error)
