"""Captions from a vLLM server, over OpenAI's protocol.

The processors of `ray.data.llm` do not fit: each is a separate pipeline of datasets, so it cannot be a stage of this
one, with its blocks, rejects and resumable runs. The one for HTTP fails as a whole at the first request that fails.
"""

from __future__ import annotations

import base64
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from embedder.images.formats import picture_format
from jobs.annotation.predictor import Batch, Columns
from jobs.errors import JobError, UsageError

_MAX_CONCURRENT = 64
"""Concurrent requests, which the server batches."""
_TIMEOUT_S = (10, 120)
"""Timeouts for connecting and for reading the answer, in seconds."""
_RETRY = Retry(
    total=4,
    connect=1,
    read=1,  # enough for a stale connection; a picture that takes too long would do so each time
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    backoff_factor=1,
    raise_on_status=False,
)
_KEY_VARIABLE = "VLLM_API_KEY"
_REQUEST_ERRORS = (requests.RequestException, ValueError, LookupError, TypeError)
"""Raised by a request, or by reading an answer of an unexpected form."""


class CaptionError(Exception):
    """The server works, but has no caption for this picture."""


@dataclass(frozen=True, kw_only=True)
class VllmServer:
    """A predictor that sends each picture's file and a prompt to a model at `url`, which ends in /v1."""

    url: str
    model: str
    prompt: str
    max_tokens: int
    session: requests.Session

    @classmethod
    def connect(cls, url: str, model: str, prompt: str, max_tokens: int) -> VllmServer:
        """Raises what `require_model` raises."""
        session, adapter = requests.Session(), HTTPAdapter(pool_maxsize=_MAX_CONCURRENT, max_retries=_RETRY)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        if key := os.environ.get(_KEY_VARIABLE):
            session.headers["Authorization"] = f"Bearer {key}"
        server = cls(url=url, model=model, prompt=prompt, max_tokens=max_tokens, session=session)
        server.require_model()
        return server

    def __call__(self, batch: Batch) -> Columns:
        with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
            return {"": list(pool.map(self._caption, batch["file"]))}

    def _caption(self, file: bytes) -> str | CaptionError:
        try:
            answer = self.session.post(f"{self.url}/chat/completions", json=self._request(file), timeout=_TIMEOUT_S)
            if answer.ok:
                text = answer.json()["choices"][0]["message"]["content"]
                if isinstance(text, str) and text.strip():
                    return text.strip()
                reason = "the answer has no text"
            else:
                reason = f"HTTP {answer.status_code}: {_error_message(answer)}"
        except _REQUEST_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
        self.require_model()  # if the server is gone, the picture is not to blame
        return CaptionError(reason)

    def _request(self, file: bytes) -> dict[str, Any]:
        kind = (picture_format(file) or "JPEG").lower()
        picture = f"data:image/{kind};base64,{base64.b64encode(file).decode()}"
        content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": self.prompt}]
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
        }

    def require_model(self) -> None:
        """Raises JobError if the server cannot be reached, UsageError if it does not have the model."""
        try:
            answer = self.session.get(f"{self.url}/models", timeout=_TIMEOUT_S)
            answer.raise_for_status()
            served = [str(each["id"]) for each in answer.json()["data"]]
        except _REQUEST_ERRORS as error:
            raise JobError(
                f"there is no vLLM server at {self.url} ({error}): start it with `vllm serve {self.model}`, or give "
                f"another --url, which ends in /v1 (and set {_KEY_VARIABLE} if the server needs a key). Finished "
                "captions are kept: run the same command again to continue"
            ) from error
        if self.model not in served:
            raise UsageError(f"{self.url} serves {', '.join(served)}: expected {self.model}, which --captioner names")


def _error_message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except _REQUEST_ERRORS:
        return answer.text
