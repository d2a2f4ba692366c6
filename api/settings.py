"""The server's settings: keyword arguments, or environment variables that begin with LIKENESS_."""

import os
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.access.caller_addresses import is_loopback
from api.access.keys import KeyRing
from api.errors import ListenError
from api.observe.logs import LogFormat
from api.replicas import Replicas
from index.queries import MAX_K

_REQUESTS_PER_MINUTE: Final = 600
_SEARCHES_PER_CORE: Final = 16
# Besides searches and fetches: pages, thumbnails, and slow request bodies.
_OTHER_REQUESTS: Final = 64


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of a request, and of what it learns. Sizes in bytes.

    `show_locations`: callers are told where pictures, models and the collection lie.
    """

    max_k: int = 1_000
    max_upload_bytes: int = 16 * 2**20
    max_json_bytes: int = 32 * 2**20  # a picture of the largest size in base64
    # 64 vectors of 4,096. Parsing holds the interpreter: so many take 20 ms, as many as fit into the bytes a second.
    max_json_values: int = 2**18
    max_url_length: int = 4_096
    max_text_length: int = 1_000
    max_id_length: int = 4_096
    max_examples: int = 16  # in a mix
    max_batch: int = 64
    body_timeout_s: float = 30.0
    # More are refused, so that the admitted ones are answered soon. Each URL holds a thread until its host has
    # answered; a separate limit keeps slow hosts from delaying uploads and texts.
    max_url_fetches: int = 32
    max_searches: int = 32
    show_locations: bool = True


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may send requests, how often, and how many at once.

    Without `keys` everybody may search, and callers on this machine may change index versions. `rate_limit_per_minute`
    is per key, or without keys per address; 0: no limit. At most `max_ongoing_requests` are in progress or queued in
    this process; more are refused at once. `cors_origins`: the sites whose pages may send requests, "*" for all.
    `loopback_names_only`: only callers that address this machine by its own name, so that no other site's name works.
    """

    keys: KeyRing | None = None
    rate_limit_per_minute: int = 0
    max_ongoing_requests: int = RequestLimits.max_searches + RequestLimits.max_url_fetches + _OTHER_REQUESTS
    request_timeout_s: float = 60.0
    cors_origins: frozenset[str] = frozenset()
    loopback_names_only: bool = False


class ServeSettings(BaseSettings):
    """One server: its collection, its model, its address and its limits."""

    model_config = SettingsConfigDict(env_prefix="LIKENESS_", frozen=True, extra="forbid")

    collection: str
    model: str | None = Field(default=None, description="a hub id or folder; none: the model of the index")
    revision: str | None = None
    device: str | None = None
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads of the model; none: all cores, or those reserved"
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    allow_remote: bool = Field(default=False, description="listen where other machines can reach, without keys")

    keys_file: str | None = Field(
        default=None, description="the API keys, as `likeness keys` writes them; none: no keys"
    )
    show_locations: bool | None = Field(
        default=None,
        description="tell callers where pictures, models and the collection lie; none: only on loopback without keys",
    )
    rate_limit_per_minute: int | None = Field(
        default=None,
        ge=0,
        description="requests of each key or address; 0: no limit; none: 600, or no limit without remote callers",
    )
    cors_origins: Annotated[frozenset[str], NoDecode] = Field(
        default=frozenset(), description='sites whose pages may ask, such as https://pictures.example; "*" for all'
    )

    allowed_hosts: Annotated[frozenset[str], NoDecode] = Field(
        default=frozenset(),
        description='"host" or "host:port" that query URLs may name though they are private',
    )
    max_k: int = Field(default=RequestLimits.max_k, ge=1, le=MAX_K)
    max_upload_bytes: int = Field(default=RequestLimits.max_upload_bytes, ge=1)
    max_query_pixels: int = Field(
        default=50_000_000,
        ge=1,
        description="of a picture that is asked about; the collection's own have up to 150 million",
    )
    decode_timeout_s: float = Field(
        default=5, gt=0, description="how long decoding a picture may take, and how long it may wait for its turn"
    )
    embedding_cache_bytes: int = Field(
        default=32 * 2**20, ge=0, description="for vectors of pictures and texts that were asked for lately"
    )
    swap_interval_s: float = Field(default=2.0, gt=0, description="how often the live index version is looked up")

    log_format: LogFormat = Field(default="text", description="of the log on stderr: text, or JSON lines")

    replicas: Annotated[Replicas, NoDecode] = Field(
        default=Replicas(1, 1),
        description='on Ray Serve, how many replicas answer: a number, or LEAST:MOST to follow the load, such as "1:4"',
    )
    target_ongoing_requests: float = Field(
        default=4, gt=0, description="where `replicas` follow the load: requests at once that one should have"
    )
    embedders: Annotated[Replicas | None, NoDecode] = Field(
        default=None, description="as `replicas`, of the model alone; none: each of `replicas` holds the model as well"
    )
    target_ongoing_embeddings: float = Field(
        # One of `replicas` makes at most 4 calls at once (32 queries in calls of 8), for up to 4 embedders.
        default=1,
        gt=0,
        description="where `embedders` follow the load: calls at once that one should have",
    )
    embedder_timeout_s: float = Field(
        default=10, gt=0, description="how long a batch of queries waits for `embedders`, its turn at them included"
    )
    shards: int | None = Field(
        default=None,
        ge=1,
        description="on Ray Serve, parts of the index, with searchers of their own; none: `replicas` hold it",
    )
    searchers: Annotated[Replicas, NoDecode] = Field(
        default=Replicas(1, 1), description="as `replicas`, of each of the `shards`"
    )
    searcher_timeout_s: float = Field(
        default=5, gt=0, description="how long a search waits for one of the `shards` before it does without, or fails"
    )
    num_cpus: float = Field(default=1, gt=0, description="CPUs that Ray reserves for each replica")
    num_gpus: float = Field(default=0, ge=0, description="GPUs, or a share of one, for each that holds the model")
    max_searches: int | None = Field(
        default=None, ge=1, description="searches, and things to embed, worked on at once; none: 16 for each core"
    )
    max_url_fetches: int = Field(
        default=RequestLimits.max_url_fetches, ge=1, description="pictures fetched from other hosts at once"
    )
    max_ongoing_requests: int | None = Field(
        default=None, ge=1, description="requests of all kinds at once; none: `max_searches`, `max_url_fetches` and 64"
    )
    max_queued_requests: int = Field(
        default=32, ge=1, description="on Ray Serve, requests that wait for a replica, one that is started anew say"
    )
    request_timeout_s: float = Field(default=Access.request_timeout_s, gt=0)

    @field_validator("allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split an environment variable's value at commas."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("replicas", "embedders", "searchers", mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        return Replicas.parse(value) if isinstance(value, str | int) else value

    def cores(self, replicas: Replicas) -> int:
        """How many cores each of `replicas` may use: all if there is only one, else those that Ray reserves for it."""
        return (os.cpu_count() or 1) if replicas.most == 1 else max(1, int(self.num_cpus))

    @property
    def is_private(self) -> bool:
        """Whether only this machine's users send requests. With keys there is a proxy for others."""
        return self.keys_file is None and is_loopback(self.host) and not self.allow_remote

    def limits(self) -> RequestLimits:
        # Base64 makes a picture a third larger.
        return RequestLimits(
            max_k=self.max_k,
            max_upload_bytes=self.max_upload_bytes,
            max_json_bytes=2 * self.max_upload_bytes,
            # The last one admitted waits for all before it: more places make answers later, not more numerous.
            max_searches=self.max_searches or _SEARCHES_PER_CORE * self.cores(self.replicas),
            max_url_fetches=self.max_url_fetches,
            show_locations=self.is_private if self.show_locations is None else self.show_locations,
        )

    def ongoing_requests(self) -> int:
        """How many requests of all kinds are worked on at once: by default more than searches and fetches can fill."""
        limits = self.limits()
        return self.max_ongoing_requests or limits.max_searches + limits.max_url_fetches + _OTHER_REQUESTS

    def access(self) -> Access:
        """The access rules. Raises KeysError for a file of keys that is missing, broken or empty."""
        by_default = 0 if self.is_private else _REQUESTS_PER_MINUTE
        return Access(
            keys=None if self.keys_file is None else KeyRing(self.keys_file),
            rate_limit_per_minute=by_default if self.rate_limit_per_minute is None else self.rate_limit_per_minute,
            max_ongoing_requests=self.ongoing_requests(),
            request_timeout_s=self.request_timeout_s,
            cors_origins=self.cors_origins,
            loopback_names_only=self.is_private,
        )

    def listen_address(self) -> tuple[str, int]:
        """Host and port. Raises ListenError for a host beyond loopback without keys or `allow_remote`."""
        if self.keys_file is None and not self.allow_remote and not is_loopback(self.host):
            raise ListenError(
                f"expected a loopback host such as 127.0.0.1, got {self.host!r}: everyone who can reach it "
                "could search the collection and see its pictures. Ask for keys with --keys (LIKENESS_KEYS_FILE; "
                "`likeness keys add` makes them), or allow it without with --allow-remote (LIKENESS_ALLOW_REMOTE=true)"
            )
        return self.host, self.port


def url_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
