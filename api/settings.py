"""The server's settings: keyword arguments, or environment variables that begin with LIKENESS_."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ByteSize, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.access.caller_addresses import is_loopback
from api.access.keys import KeyRing
from api.documents import MAX_JSON_VALUES
from api.errors import ListenError
from api.observe.log import LogFormat
from embedder.identity import Precision
from embedder.machine import usable_cpus
from embedder.python_class import CLASS_NAME
from index.search_options import MAX_K

REQUESTS_PER_MINUTE: Final = 600
_SEARCHES_PER_CORE: Final = 16
# In addition to searches and fetches: pages, thumbnails, and slow request bodies.
_OTHER_REQUESTS: Final = 64

# Absolute, because a replica may have another working directory. With its links, because Kubernetes mounts a secret as
# links to a folder, which each pod names differently and updates move.
AbsolutePath = Annotated[str, Field(min_length=1), AfterValidator(lambda path: str(Path(path).absolute()))]

# What a browser's Origin header says of a site; anything else, such as a slash at the end, would never equal one.
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
_HOST: Final = re.compile(r"[^/?#*@\s,]+")


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError("expected sites such as https://pictures.example, in lower case and without a path, or *")
    return text


def _allowed_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("expected a host, such as intranet.example, 10.0.0.7:8080 or [::1]:8080, without http://")
    return text


@dataclass(frozen=True)
class Replicas:
    """The number of replicas of a deployment: at least `minimum`, and up to `maximum` under load."""

    minimum: int
    maximum: int

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse `2` or `1:4`. Raises ValueError for anything but a number from 1, or two such numbers as MIN:MAX."""
        minimum, colon, maximum = str(text).partition(":")
        try:
            replicas = cls(int(minimum), int(maximum if colon else minimum))
        except ValueError:
            replicas = cls(0, 0)
        if not 1 <= replicas.minimum <= replicas.maximum:
            raise ValueError("expected a number of replicas, such as 2, or MIN:MAX, such as 1:4")
        return replicas


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits on requests, with sizes in bytes.

    `show_locations`: whether answers reveal where pictures, models and the collection are.
    """

    max_k: int = 1_000
    max_upload_bytes: int = 16 * 2**20
    max_json_bytes: int = 32 * 2**20  # a picture of the largest size in base64
    max_json_values: int = MAX_JSON_VALUES
    body_timeout_s: float = 30.0
    # More are refused, so that the admitted ones are answered soon. Each URL occupies a thread until its host answers;
    # a separate limit keeps slow hosts from delaying uploads and texts.
    max_url_fetches: int = 32
    max_searches: int = 32
    show_locations: bool = True


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may send requests, how often, and how many at once.

    Without `keys` everybody may search, and callers on this machine may change index versions. `rate_limit_per_minute`
    is per key, or without keys per address; 0: no limit. At most `max_ongoing_requests` are in progress or queued in
    this process; more are refused at once. `cors_origins` are the sites whose pages may send requests, "*" for all.
    `loopback_names_only`: accept only requests whose Host is a loopback name, against DNS rebinding.
    """

    keys: KeyRing | None = None
    rate_limit_per_minute: int = 0
    max_ongoing_requests: int = RequestLimits.max_searches + RequestLimits.max_url_fetches + _OTHER_REQUESTS
    request_timeout_s: float = 60.0
    cors_origins: frozenset[str] = frozenset()
    loopback_names_only: bool = False


class ServeSettings(BaseSettings):
    """One server: its collection, its model, its address and its limits."""

    model_config = SettingsConfigDict(
        env_prefix="LIKENESS_", frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    collection: str
    """The collection: a folder or bucket prefix. `likeness serve` takes it as an argument."""
    more_collections: Annotated[tuple[str, ...], NoDecode] = ()
    """More collections to serve, separated by commas. Each, like the first, may be `NAME=LOCATION`."""
    max_memory: ByteSize | None = Field(None, ge=1)
    """With several collections: maximum memory of the open indexes, such as `8GiB` (`--max-memory`); the least recently
    used are closed. Models, caches and Python are not included.
    """
    collection_idle_s: float = Field(900, gt=0)
    """With several collections: seconds without requests after which a collection is closed."""
    model: str | None = None
    """The new location of the index's model, if it has moved: a hub id or folder."""
    revision: str | None = None
    """The model's branch, tag or commit on the hub. By default the one in the index."""
    embedder: Annotated[tuple[Annotated[str, Field(pattern=CLASS_NAME)], ...], NoDecode] = ()
    """A class of your own, `module:Class`, whose code may run (`--embedder`); in the variable several, separated by
    commas. It embeds the queries of the collections whose vectors it made, also if an index goes live later.
    """
    device: str | None = None
    """`cuda`, `cpu`, … By default a GPU if there is one."""
    precision: Precision = "auto"
    """Precision of the model: `fp32`, `bf16`, or on CPUs `int8`. By default the fastest one that agrees with `fp32`."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for the model. By default all cores, or with several replicas `LIKENESS_NUM_CPUS`."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on. With `--local`, 0 picks a free one."""
    allow_remote: bool = False
    """Listen beyond this machine even without keys (`--allow-remote`)."""

    keys_file: AbsolutePath | None = None
    """File of API keys (`--keys`), as `likeness keys` writes it. By default no keys."""
    show_locations: bool | None = None
    """Whether answers reveal where pictures (`uri`), models and the collection are; if not, `uri` is null. By default
    only when serving just this machine: on loopback, without keys or `LIKENESS_ALLOW_REMOTE`.
    """
    rate_limit_per_minute: int | None = Field(None, ge=0)
    """Maximum requests per minute to each replica from each key, or without keys from each address. 0: no limit. A
    request for an image counts as a tenth, a batch as one for each item. By default 600, or no limit when serving just
    this machine.
    """
    cors_origins: Annotated[frozenset[Annotated[str, AfterValidator(_origin)]], NoDecode] = frozenset()
    """Other sites whose pages may send requests (CORS), such as `https://pictures.example`, separated by commas; `*`
    for all.
    """

    allowed_hosts: Annotated[frozenset[Annotated[str, AfterValidator(_allowed_host)]], NoDecode] = frozenset()
    """A private host, or `host:port`, that query URLs may name (`--allow-host`); in the variable several, separated by
    commas.
    """
    max_k: int = Field(
        default=RequestLimits.max_k, ge=1, le=MAX_K, description=f"Maximum matches per query; {MAX_K:,} at most."
    )
    max_upload_bytes: int = Field(RequestLimits.max_upload_bytes, ge=1)
    """Maximum size of a query picture, uploaded or fetched."""
    max_query_pixels: int = Field(50_000_000, ge=1)
    """Maximum pixels of a query picture. The collection's own pictures may have as many as its jobs accept."""
    decode_timeout_s: float = Field(5, gt=0)
    """Maximum seconds to decode a picture. A picture also waits at most this long for its turn; then the request gets
    429 with `Retry-After`.
    """
    embedding_cache_bytes: int = Field(32 * 2**20, ge=0)
    """Memory for caching the vectors of recent queries. 0: no cache."""
    swap_interval_s: float = Field(2.0, gt=0)
    """How often to check for a new index version, in seconds."""

    log_format: LogFormat = "text"
    """Format of the log on stderr: `text`, or `json` with one object per line."""

    replicas: Annotated[Replicas, NoDecode] = Replicas(1, 1)
    """Replicas that answer requests: a number, or a range such as `1:4` to scale with the load."""
    target_ongoing_requests: float = Field(4, gt=0)
    """Concurrent requests per replica to aim for, if `LIKENESS_REPLICAS` is a range."""
    embedders: Annotated[Replicas | None, NoDecode] = None
    """Separate replicas for the model: a number or a range. By default each of `LIKENESS_REPLICAS` holds the model
    too.
    """
    # Each of `replicas` makes at most 4 concurrent calls (32 queries in calls of 8), to up to 4 embedders.
    target_ongoing_embeddings: float = Field(1, gt=0)
    """Concurrent calls per embedder to aim for, if `LIKENESS_EMBEDDERS` is a range. A call has up to 8 queries."""
    embedder_timeout_s: float = Field(10, gt=0)
    """Maximum seconds that a batch of queries waits for the embedders, including in the queue; then it gets 503,
    `embedder-unavailable`.
    """
    shards: int | None = Field(None, ge=1)
    """Number of parts to split the index into, each with its own searchers. By default each of `LIKENESS_REPLICAS`
    holds the whole index.
    """
    searchers: Annotated[Replicas, NoDecode] = Replicas(1, 1)
    """Replicas of each shard: a number or a range."""
    searcher_timeout_s: float = Field(5, gt=0)
    """Seconds that a search waits for a shard before it fails, or continues without it if the request allows that."""
    num_cpus: float = Field(1, gt=0)
    """CPUs that Ray reserves for each replica."""
    num_gpus: float = Field(0, ge=0)
    """GPUs, or a fraction such as 0.5, that Ray reserves for each replica with the model."""
    max_searches: int | None = Field(None, ge=1)
    """Maximum searches and embeddings in progress or queued; more get 429 with `Retry-After`. Lower it for lower
    latency. By default 16 per core of a replica.
    """
    max_url_fetches: int = Field(RequestLimits.max_url_fetches, ge=1)
    """Maximum concurrent picture fetches from other hosts. Searches by upload, words or id do not wait for these."""
    max_ongoing_requests: int | None = Field(None, ge=1)
    """Maximum requests of all kinds in progress, including those waiting for bodies and hosts. By default
    `LIKENESS_MAX_SEARCHES` + `LIKENESS_MAX_URL_FETCHES` + 64.
    """
    max_queued_requests: int = Field(32, ge=1)
    """On Ray Serve: maximum requests waiting for a replica, for example while one restarts; more get 429."""
    request_timeout_s: float = Field(Access.request_timeout_s, gt=0)
    """Seconds after which a request is answered with 503."""

    @field_validator("allowed_hosts", "cors_origins", "embedder", "more_collections", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Split an environment variable's value at commas."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("replicas", "embedders", "searchers", mode="before")
    @classmethod
    def _parse_replicas(cls, value: Any) -> Any:
        return Replicas.parse(value) if isinstance(value, str | int) else value

    def cores(self, replicas: Replicas) -> int:
        """Cores that each of `replicas` may use: all if there is only one, else those that Ray reserves for it."""
        return usable_cpus() if replicas.maximum == 1 else max(1, int(self.num_cpus))

    @property
    def requires_keys(self) -> bool:
        return self.keys_file is not None

    @property
    def needs_caller_addresses(self) -> bool:
        """Whether callers' addresses matter: without keys, each address has its own rate, and only this machine's may
        change index versions.
        """
        return not self.requires_keys and not is_loopback(self.host)

    @property
    def is_private(self) -> bool:
        """Whether only this machine's users send requests. Keys are a sign of a proxy, and so of others."""
        return not (self.requires_keys or self.allow_remote or self.needs_caller_addresses)

    def limits(self) -> RequestLimits:
        # Base64 makes a picture a third larger.
        return RequestLimits(
            max_k=self.max_k,
            max_upload_bytes=self.max_upload_bytes,
            max_json_bytes=2 * self.max_upload_bytes,
            # The last one admitted waits for all before it: a higher limit adds latency, not throughput.
            max_searches=self.max_searches or _SEARCHES_PER_CORE * self.cores(self.replicas),
            max_url_fetches=self.max_url_fetches,
            show_locations=self.is_private if self.show_locations is None else self.show_locations,
        )

    def ongoing_requests(self) -> int:
        """Maximum concurrent requests of all kinds; by default more than searches and fetches can fill."""
        limits = self.limits()
        return self.max_ongoing_requests or limits.max_searches + limits.max_url_fetches + _OTHER_REQUESTS

    def access(self) -> Access:
        """The access rules. Raises KeysError if the file of keys is missing, broken or empty."""
        default_rate = 0 if self.is_private else REQUESTS_PER_MINUTE
        return Access(
            keys=None if self.keys_file is None else KeyRing(self.keys_file),
            rate_limit_per_minute=default_rate if self.rate_limit_per_minute is None else self.rate_limit_per_minute,
            max_ongoing_requests=self.ongoing_requests(),
            request_timeout_s=self.request_timeout_s,
            cors_origins=self.cors_origins,
            loopback_names_only=self.is_private,
        )

    def listen_address(self) -> tuple[str, int]:
        """Host and port. Raises ListenError for a host beyond loopback without keys or `allow_remote`."""
        if self.needs_caller_addresses and not self.allow_remote:
            raise ListenError(
                f"expected a loopback host such as 127.0.0.1, got {self.host!r}, where everyone who can reach it could "
                "search the collection and see its pictures: require keys with --keys (LIKENESS_KEYS_FILE; `likeness "
                "keys add` makes them), or allow this without keys by --allow-remote (LIKENESS_ALLOW_REMOTE=true)"
            )
        return self.host, self.port


def server_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
