"""The clients of a bucket, one of each kind per process, so that connections are reused; and how often a request is
tried again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from index.errors import CollectionError, UnreachableError
from index.storage.bucket_address import ANONYMOUS, ATTEMPTS, S3, Bucket

if TYPE_CHECKING:
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    Store = S3Store | GCSStore | AzureStore

T = TypeVar("T")

_BROKEN_OFF: Final = re.compile(r"response body", re.IGNORECASE)
_CONNECT_S: Final = 5.0
"""Maximum time to connect to a server; the next attempt may reach another one."""


@cache
def object_store(bucket: Bucket) -> Store:
    """obstore's client. CollectionError if there are no credentials."""
    from obstore.store import AzureStore, GCSStore  # slow to import, and folders do not need it

    match bucket.scheme.client:
        case "S3":
            return _s3_store(bucket)
        case "Google":
            google: Any = {"skip_signature": True} if bucket.anonymous else {}
            if bucket.endpoint:
                # For an emulator: with only a base URL, obstore requests a token from the machine before it writes.
                no_key = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
                account = {"gcs_base_url": bucket.endpoint, "disable_oauth": True, **no_key}
                google["service_account_key"] = json.dumps(account)
            return GCSStore(bucket.name, config=google, **_options(bucket))
        case "Azure":
            key, signature = bucket.azure_secrets()
            azure = {"account_name": bucket.user, "account_key": key, "sas_key": signature, "endpoint": bucket.endpoint}
            config: Any = {name: value for name, value in azure.items() if value}
            return AzureStore(bucket.name, config=config, **_options(bucket))


def _s3_store(bucket: Bucket) -> S3Store:
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    config: Any = {"region": region} if (region := _region(bucket)) else {}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if bucket.anonymous:
        config["skip_signature"] = True
        return S3Store(bucket.name, config=config, **_options(bucket))
    if bucket.secret:
        # With keys in its configuration instead of a provider, obstore also sends the environment's session token.
        keys: Any = {"access_key_id": bucket.user, "secret_access_key": bucket.secret, "expires_at": None}
        return S3Store(bucket.name, config=config, **_options(bucket), credential_provider=lambda: keys)
    try:
        # Unlike boto3, obstore does not read the profiles of ~/.aws. boto3 renews a role's credentials ten minutes
        # before they expire, so they are always valid for that long.
        provider = Boto3CredentialProvider(ttl=timedelta(minutes=10))
    except ValueError as error:
        raise CollectionError(
            f"{bucket.address}: no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "AWS_PROFILE or a role, on every machine"
        ) from error
    return S3Store(bucket.name, config=config, **_options(bucket), credential_provider=provider)


def _options(bucket: Bucket) -> Any:
    """Timeouts and retries, the same for every store."""
    client: ClientConfig = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "read_timeout": timedelta(seconds=bucket.request_s),
        "timeout": timedelta(seconds=2 * bucket.request_s),  # a retry continues after the part of a body already read
    }
    retry: RetryConfig = {
        "max_retries": bucket.attempts - 1,
        "retry_timeout": timedelta(seconds=6 * bucket.request_s),  # longer than "timeout", or nothing would be retried
        "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    return {"client_options": client, "retry_config": retry}


@cache
def s3_client(bucket: Bucket) -> Any:
    """boto3's client, for keys that obstore cannot name, such as `a//b` and `a/`, or that are in another order."""
    import boto3  # type: ignore[import-untyped]
    from botocore import UNSIGNED  # type: ignore[import-untyped]
    from botocore.config import Config  # type: ignore[import-untyped]

    keys = {"aws_access_key_id": bucket.user, "aws_secret_access_key": bucket.secret} if bucket.secret else {}
    limits = {"connect_timeout": _CONNECT_S, "read_timeout": bucket.request_s}
    retries = {"total_max_attempts": bucket.attempts}
    config = Config(signature_version=UNSIGNED if bucket.anonymous else None, retries=retries, **limits)
    session = boto3.Session(region_name=_region(bucket), **keys)  # the default session is not safe in threads
    return session.client("s3", endpoint_url=bucket.endpoint or None, config=config)


def _region(bucket: Bucket) -> str | None:
    """The S3 region of the address, else of the environment, else (without a custom endpoint) looked up at Amazon."""
    named = bucket.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or (None if bucket.endpoint else _amazons_region(bucket.name))


@cache
def _amazons_region(name: str) -> str | None:
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    bucket = Bucket(scheme=S3, name=name, user=ANONYMOUS, region="us-east-1", request_s=_CONNECT_S, attempts=3)
    try:
        answer = s3_client(bucket).head_bucket(Bucket=name)
    except ClientError as error:  # a refusal names the region too, unless there is no such bucket
        answer = error.response
    except BotoCoreError as error:
        raise UnreachableError(f"{bucket.address} cannot be reached: {error}") from error
    region: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
    return region


def with_retries(operation: Callable[[], T]) -> T:
    """Repeat `operation` if an answer breaks off; other failures of requests are retried by obstore itself."""
    from obstore.exceptions import GenericError

    for attempt in range(1, ATTEMPTS):
        try:
            return operation()
        except GenericError as error:
            if not _BROKEN_OFF.search(str(error)):
                raise
            time.sleep(0.05 * 2**attempt)
    return operation()
