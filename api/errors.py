"""Errors of the package.

ApiError
├── StartError              the server cannot start; the message says what to change
│   ├── OtherModelError     the index holds vectors of another model
│   ├── ListenError         the address is in use, or requires keys or `allow_remote`
│   ├── KeysError           the file of API keys is missing, broken or empty, or lacks a key
│   └── DeployError         Ray Serve gave up on the application
├── Problem                 one request cannot be answered; becomes an RFC 9457 problem document
│   └── …                   one class for each kind, in `api/problems.py`
└── ClientError             LikenessClient got no usable answer
    ├── ProblemAnswered     the server's problem document says why
    │   ├── RequestRefused      it is useless to try again
    │   └── ServerUnavailable   status 429 or 502 to 504, after all retries; also a ServerUnreachable
    └── ServerUnreachable   no connection, a broken one, or no answer in time: try again later
"""

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """Base of this package's errors."""


class StartError(ApiError): ...


class OtherModelError(StartError): ...


class ListenError(StartError): ...


class KeysError(StartError): ...


class DeployError(StartError): ...


class ClientError(ApiError): ...


class ProblemAnswered(ClientError):  # noqa: N818 (reads better where it is caught)
    """The server answered with the problem document `problem`.

    Distinguish problems by `type`, such as urn:likeness:problem:unusable-image. `errors` lists the invalid fields of a
    request, and `field` names the rejected picture, for example "queries.2.url". `retry_after` is the server's
    Retry-After in seconds, or None.
    """

    def __init__(self, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        super().__init__(problem, retry_after)
        self.problem = problem
        self.retry_after = retry_after
        self.type = str(problem.get("type", "about:blank"))
        self.status = int(problem.get("status", 0))
        self.detail = str(problem.get("detail", ""))
        self.errors: list[dict[str, str]] = problem.get("errors") or []
        self.field: str | None = problem.get("field")

    def __str__(self) -> str:
        where = "" if self.field is None else f"{self.field}: "
        return f"{where}{self.detail} ({self.type}, HTTP status {self.status})"


class RequestRefused(ProblemAnswered): ...


class ServerUnreachable(ClientError): ...  # noqa: N818 (reads better where it is caught)


class ServerUnavailable(ProblemAnswered, ServerUnreachable): ...
