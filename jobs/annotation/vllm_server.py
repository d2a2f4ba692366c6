"""Captions by a server of vLLM, which speaks OpenAI's protocol.

Not by the processors of `ray.data.llm`: each of them is a pipeline of data sets, so none can be a stage of this one,
with its blocks, rejects and runs that go on, and the one over HTTP fails as a whole at the first row asked in vain.
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

_AT_ONCE = 16
"""Requests: a server makes batches of what it has been asked."""
_TIMEOUT_S = (10, 120)
"""To connect, and to answer."""
_RETRY = Retry(
    total=4,
    connect=1,
    read=1,  # a picture may take too long each time; a connection that was kept too long breaks once
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    backoff_factor=1,
    raise_on_status=False,
)
_KEY = "VLLM_API_KEY"
_UNUSABLE = (requests.RequestException, ValueError, LookupError, TypeError)
"""What asking, and an answer of another kind, may raise."""


class CaptionError(Exception):
    """The server is there and has no caption for this picture."""


@dataclass(frozen=True, kw_only=True)
class VllmServer:
    """A predictor: the file of each picture is sent to a model at `url`, which ends in /v1, with a prompt."""

    url: str
    model: str
    prompt: str
    max_tokens: int
    session: requests.Session

    @classmethod
    def connect(cls, url: str, model: str, prompt: str, max_tokens: int) -> VllmServer:
        """JobError when there is no such server, UsageError when it has other models."""
        session, adapter = requests.Session(), HTTPAdapter(pool_maxsize=_AT_ONCE, max_retries=_RETRY)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        if key := os.environ.get(_KEY):
            session.headers["Authorization"] = f"Bearer {key}"
        server = cls(url=url, model=model, prompt=prompt, max_tokens=max_tokens, session=session)
        server.require_model()
        return server

    def __call__(self, batch: Batch) -> Columns:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return {"": list(pool.map(self._caption, batch["file"]))}

    def _caption(self, file: bytes) -> str | CaptionError:
        try:
            answer = self.session.post(f"{self.url}/chat/completions", json=self._asked(file), timeout=_TIMEOUT_S)
            if answer.ok:
                text = answer.json()["choices"][0]["message"]["content"]
                if isinstance(text, str) and text.strip():
                    return text.strip()
                why = "it answered without a text"
            else:
                why = f"HTTP {answer.status_code}: {_reason(answer)}"
        except _UNUSABLE as error:
            why = f"{type(error).__name__}: {error}"
        self.require_model()  # where the server has gone, the picture is not at fault
        return CaptionError(why)

    def _asked(self, file: bytes) -> dict[str, Any]:
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
        """JobError, or UsageError, unless the server answers and has the model."""
        try:
            answer = self.session.get(f"{self.url}/models", timeout=_TIMEOUT_S)
            answer.raise_for_status()
            served = [str(each["id"]) for each in answer.json()["data"]]
        except _UNUSABLE as error:
            raise JobError(
                f"there is no server of vLLM at {self.url} ({error}): start it with `vllm serve {self.model}`, or give "
                f"another --url, which ends in /v1 (and {_KEY} in the environment, if it has a key). What was "
                "annotated is kept: run the same command again to continue"
            ) from error
        if self.model not in served:
            raise UsageError(f"{self.url} serves {', '.join(served)}: expected {self.model}, as --captioner says")


def _reason(answer: requests.Response) -> str:
    """The server's own words."""
    try:
        return str(answer.json()["error"]["message"])
    except _UNUSABLE:
        return answer.text
