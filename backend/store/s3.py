"""The store in a bucket of any S3 server. Credentials come from boto3's usual sources.

Invariants:
- every call ends: it connects within 5 s, waits for at most 30 s, and retries throttled and failed calls up to five
  attempts; files above 16 MiB are uploaded in parts, and a multipart upload appears completely or not at all.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import boto3
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from backend.outside.trust import trouble_with_certificate
from backend.store.port import NotStored, StoredObject, StoreError, StoreUnavailable, checked_key
from engine.spec.assets.store_address import StoreAddress

_TRANSFER: Final = TransferConfig(multipart_threshold=16 * 1024**2, multipart_chunksize=16 * 1024**2, max_concurrency=4)
_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_BUSY: Final = frozenset(
    {"SlowDown", "Throttling", "RequestTimeout", "ServiceUnavailable", "InternalError", "503", "500"}
)


class S3Store:
    def __init__(self, address: StoreAddress) -> None:
        self._bucket, self._prefix = address.bucket, f"{address.prefix}/" if address.prefix else ""
        config = Config(retries={"mode": "standard", "total_max_attempts": 5}, **address.config_options)
        self._client: Any = boto3.client("s3", config=config, **address.client_options)

    def put(self, key: str, content: bytes | Path) -> None:
        name = self._name(key)
        try:
            if isinstance(content, Path):
                self._client.upload_file(str(content), self._bucket, name, Config=_TRANSFER)
            else:
                self._client.put_object(Bucket=self._bucket, Key=name, Body=content)
        except S3UploadFailedError as error:  # boto3 wraps what the parts' calls raised
            cause = error.__cause__ or error.__context__
            raise _translate(cause if isinstance(cause, ClientError | BotoCoreError) else error, key) from error
        except (ClientError, BotoCoreError) as error:
            raise _translate(error, key) from error

    def get(self, key: str) -> bytes:
        return self._get(key)

    def get_range(self, key: str, start: int, num_bytes: int) -> bytes:
        if num_bytes <= 0:
            return b""
        return self._get(key, Range=f"bytes={start}-{start + num_bytes - 1}")

    def list(self, prefix: str) -> Iterator[StoredObject]:
        pages = self._client.get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for row in page.get("Contents", ()):
                    yield StoredObject(key=row["Key"].removeprefix(self._prefix), num_bytes=row["Size"])
        except (ClientError, BotoCoreError) as error:
            raise _translate(error, prefix) from error

    def delete(self, key: str) -> None:
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._name(key))
        except (ClientError, BotoCoreError) as error:
            raise _translate(error, key) from error

    def presigned_url(self, key: str, *, expires_in_s: int) -> str | None:
        values = {"Bucket": self._bucket, "Key": self._name(key)}
        url: str = self._client.generate_presigned_url("get_object", Params=values, ExpiresIn=expires_in_s)
        return url

    def _get(self, key: str, **more: str) -> bytes:
        try:
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._name(key), **more)["Body"].read()
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] == "InvalidRange":
                return b""  # starts after the end
            raise _translate(error, key) from error
        return body

    def _name(self, key: str) -> str:
        return self._prefix + checked_key(key)


def _translate(error: Exception, key: str) -> StoreError:
    if not isinstance(error, ClientError):
        trouble = trouble_with_certificate(error, "LAMINAR_STORE_ENDPOINT", authority="AWS_CA_BUNDLE")
        return StoreUnavailable(f"{key}: {trouble or error}")  # no connection, no response, or a broken one
    code = str(error.response["Error"]["Code"])
    if code in _MISSING:
        return NotStored(key)
    return (StoreUnavailable if code in _BUSY else StoreError)(f"{key}: {error}")
