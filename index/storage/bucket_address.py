"""Parses addresses of buckets, and reads the environment variables that each cloud's own tools read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from index.errors import CollectionError


@dataclass(frozen=True)
class Scheme:
    """A cloud: what its addresses say, and what it can do. `name` is its usual scheme, `client` which of obstore's it
    has, `credentials` the variables to set instead of a key.

    `options` may follow the question mark. With `has_account`, an account precedes the @, instead of credentials.
    """

    name: str
    client: Literal["S3", "Google", "Azure"]
    credentials: str
    options: tuple[str, ...] = ()
    has_account: bool = False

    @property
    def any_key(self) -> bool:
        """Whether boto3 lists and removes the keys that obstore cannot name."""
        return self.client == "S3"

    @property
    def bulk_delete(self) -> bool:
        """Whether one request removes many objects, and does not mind those that are missing."""
        return self.client == "S3"


S3: Final = Scheme("s3", "S3", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", ("endpoint_override", "scheme", "region"))
GS: Final = Scheme("gs", "Google", "GOOGLE_APPLICATION_CREDENTIALS", ("endpoint_override", "scheme"))
AZ: Final = Scheme("az", "Azure", "AZURE_STORAGE_KEY", has_account=True)
SCHEMES: Final = {"s3": S3, "gs": GS, "gcs": GS, "az": AZ, "abfs": AZ, "abfss": AZ}
"""By what addresses begin with."""
ANONYMOUS: Final = "anonymous"
ATTEMPTS: Final = 9
"""The pauses between them double from 50 ms, to 13 s in all: a store that asks clients to slow down means seconds."""
MAX_AT_ONCE: Final = 16 << 20
"""Maximum bytes of a read, which is in several requests, because one alone does not use the full bandwidth."""
ODD_PART: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")
"""A part of a key that is empty, "." or "..", or a control character: obstore reads no such object."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A bucket, or a container of an Azure account, and how it is reached.

    `user` and `secret` are from the address: an access key, or Azure's account and its shared access signature.
    `endpoint` is a URL; empty for the cloud's own. A request fails after `request_s` seconds without data.
    """

    scheme: Scheme
    name: str
    user: str = ""
    secret: str = field(default="", repr=False)
    endpoint: str = ""
    region: str = ""
    request_s: float = 30.0
    attempts: int = ATTEMPTS

    @classmethod
    def of(cls, address: str) -> tuple[Bucket, str]:
        """The bucket and the prefix of an s3:// gs:// az:// address, or CollectionError. Sends no request."""
        parts, shown = split_address(address), without_secrets(address)
        scheme = SCHEMES[parts.scheme]
        login, _, name = parts.netloc.rpartition("@")
        user, _, secret = login.partition(":")
        if not name or ":" in name:
            raise CollectionError(f"{shown}: expected {parts.scheme}://bucket/prefix")
        if not scheme.has_account and user not in ("", ANONYMOUS) and not secret:
            raise CollectionError(
                f"{parts.scheme}://{name}{parts.path}: expected a secret beside the key, or neither: set "
                f"{scheme.credentials}"
            )
        prefix = parts.path.strip("/")
        if prefix and ODD_PART.search(prefix):
            raise CollectionError(
                f'{shown}: a part of the prefix is empty, "." or "..", or has a control character: move the objects to '
                "another prefix"
            )
        if scheme.has_account:
            if "." in name or parts.scheme == "abfss":
                raise CollectionError(f"{shown}: write az://account@container/prefix")
            return cls._azure(address, name, unquote(user), parts.query), prefix
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if options.keys() - set(scheme.options):
            raise CollectionError(f"{shown}: expected only {', '.join(scheme.options)} after the question mark")
        endpoint = options.get("endpoint_override", "")
        if endpoint and "://" not in endpoint:
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        bucket = cls(
            scheme=scheme,
            name=name,
            user=unquote(user),
            secret=unquote(secret),
            endpoint=endpoint or _endpoint(scheme),
            region=options.get("region", ""),
        )
        return bucket, prefix

    @classmethod
    def _azure(cls, address: str, container: str, user: str, query: str) -> Bucket:
        connection = _azure_connection()
        account = user or os.environ.get("AZURE_STORAGE_ACCOUNT", "") or _azure_account(connection)
        if not account:
            raise CollectionError(
                f"{without_secrets(address)}: expected a storage account; set AZURE_STORAGE_ACCOUNT or write "
                "az://account@container/…"
            )
        signature = query if "sig=" in query else ""
        endpoint = connection.get("BlobEndpoint", "").rstrip("/")
        return cls(scheme=AZ, name=container, user=account, secret=signature, endpoint=endpoint)

    @property
    def address(self) -> str:
        """For messages."""
        return f"{self.scheme.name}://{self.name}"

    @property
    def anonymous(self) -> bool:
        """Whether to use no credentials: for s3://anonymous@bucket/… and Google's emulator."""
        return self.user == ANONYMOUS or (self.scheme == GS and bool(self.endpoint))

    def azure_secrets(self) -> tuple[str | None, str | None]:
        """Account key and shared access signature; without either, Azure's own credential chain is used."""
        connection = _azure_connection()
        signature = self.secret or os.environ.get("AZURE_STORAGE_SAS_TOKEN") or connection.get("SharedAccessSignature")
        if signature:
            return None, signature.removeprefix("?")
        return os.environ.get("AZURE_STORAGE_KEY") or connection.get("AccountKey"), None


def _azure_account(connection: dict[str, str]) -> str:
    """The account. With a shared access signature, only the server's name has it, or an emulator's path."""
    host, _, path = connection.get("BlobEndpoint", "").rpartition("://")[2].rstrip("/").partition("/")
    return connection.get("AccountName", "") or path or host.partition(".")[0]


def split_address(address: str) -> SplitResult:
    """The parts of an address, all empty for a plain path. In an address % and # are ordinary characters."""
    try:
        return urlsplit(address if "://" in address else "", allow_fragments=False)
    except ValueError:  # its message may contain credentials
        raise CollectionError(f"{without_secrets(address)}: expected an address such as s3://bucket/prefix") from None


def without_secrets(text: str) -> str:
    """An address, or a text that contains one, without credentials; even invalid ones, which contain a slash."""
    text = re.sub(r"://[^/@:?#\s]*:[^@\s]*@", "://", text)
    return re.sub(r"\?[^\s'\"]*\bsig=[^\s'\"]*", "", text)


def _endpoint(scheme: Scheme) -> str:
    if scheme == GS:
        host = os.environ.get("STORAGE_EMULATOR_HOST", "")
        return host if "://" in host or not host else f"http://{host}"
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _azure_connection() -> dict[str, str]:
    """The parts of AZURE_STORAGE_CONNECTION_STRING."""
    parts = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
    return {name: value for name, _, value in (part.partition("=") for part in parts if "=" in part)}
