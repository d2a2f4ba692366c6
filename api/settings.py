"""How the server is set up: keyword arguments, or environment variables that begin with LIKENESS_."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.errors import ListenError
from index.search import MAX_K


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What one request may ask for and send. Sizes in bytes."""

    max_k: int = 1_000
    max_upload_bytes: int = 16 * 2**20
    max_json_bytes: int = 32 * 2**20  # a picture of the largest size in base64
    max_url_length: int = 4_096
    max_text_length: int = 1_000
    max_id_length: int = 4_096
    max_examples: int = 16  # in a mix
    max_batch: int = 64
    body_timeout_s: float = 30.0
    # Each waiting URL holds a thread; a queue of its own keeps slow hosts from blocking uploads and texts.
    max_url_fetches: int = 32
    max_searches: int = 32


class ServeSettings(BaseSettings):
    """One server: which collection it answers from, with which model, where it listens, what it refuses."""

    model_config = SettingsConfigDict(env_prefix="LIKENESS_", frozen=True, extra="forbid")

    collection: str
    model: str | None = Field(default=None, description="a hub id or folder; none: the model of the index")
    revision: str | None = None
    device: str | None = None
    threads: int | None = Field(default=None, ge=1, description="CPU threads of the model; none: torch's choice")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    allow_remote: bool = Field(default=False, description="listen on an address that other machines can reach")

    allowed_hosts: Annotated[frozenset[str], NoDecode] = Field(
        default=frozenset(),
        description='"host" or "host:port" that query URLs may name though they are private',
    )
    max_k: int = Field(default=RequestLimits.max_k, ge=1, le=MAX_K)
    max_upload_bytes: int = Field(default=RequestLimits.max_upload_bytes, ge=1)
    swap_interval_s: float = Field(default=2.0, gt=0, description="how often the live index version is looked up")

    num_cpus: float = Field(default=1, gt=0, description="CPUs that Ray reserves for the replica")
    num_gpus: float = Field(default=0, ge=0)
    max_ongoing_requests: int = Field(default=64, ge=1)
    max_queued_requests: int = Field(default=256, ge=1)
    request_timeout_s: float = Field(default=60.0, gt=0)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """An environment variable holds hosts apart by commas."""
        return [host.strip() for host in value.split(",") if host.strip()] if isinstance(value, str) else value

    def limits(self) -> RequestLimits:
        # Base64 makes a third more of a picture.
        return RequestLimits(
            max_k=self.max_k, max_upload_bytes=self.max_upload_bytes, max_json_bytes=2 * self.max_upload_bytes
        )

    def listen_address(self) -> tuple[str, int]:
        """Host and port. Raises ListenError for a host beyond loopback without `allow_remote`."""
        if not self.allow_remote and not _is_loopback(self.host):
            raise ListenError(
                f"expected a loopback host such as 127.0.0.1, got {self.host!r}: everyone who can reach it "
                "could search the collection and see its pictures. Put a proxy that checks who is asking in "
                "front, or allow it with allow_remote (LIKENESS_ALLOW_REMOTE=true)"
            )
        return self.host, self.port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
