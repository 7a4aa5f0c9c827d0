"""Checkpoints in a bucket: they outlive the node, and other nodes can load them.

    step-000050/parts/<sha256>            every part of both manifests, named by its hash
    step-000050/progress/manifest.json
    step-000050/manifest.json             written last: without it there is no checkpoint

Invariants:
- a part is uploaded under its own hash, so an interrupted upload resumes at the next part and never mixes contents;
- a crash at any point leaves no manifest without all of its parts;
- fetched parts are verified like local ones by the process that loads them, before it uses them;
- a slow or unreachable store costs time, then this checkpoint: `ConnectionError`, never a broken checkpoint.

boto3 is an extra of the engine, imported only where an address of a store is configured.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from engine.live.process.settings import Settings
from engine.process.progress import progress_reporter, report_progress, working
from engine.spec.assets.store_address import StoreAddress
from engine.spec.checkpoint_manifest import (
    MANIFEST_FILE,
    PROGRESS_FOLDER,
    STORED_PARTS,
    CheckpointManifest,
    CheckpointPart,
)
from engine.training.checkpoint.folder import (
    CheckpointUnverified,
    note_elsewhere,
    survey_checkpoint,
    verify_checkpoint,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

TRIES: Final = 6
"""In addition to boto's own tries; the waits add up to half a minute, enough for a server restart."""
FIRST_WAIT_S: Final = 1.0
_MULTIPART_BYTES: Final = 16 * 2**20
_MOST_AT_ONCE: Final = 4
_IN_FLIGHT_BYTES: Final = _MULTIPART_BYTES * _MOST_AT_ONCE

FETCHED: Final = "fetched"
"""The folder in LAMINAR_STORE_DIR for copies of stored checkpoints."""
ORIGIN_FILE: Final = "origin"
"""Holds the store address of a fetched checkpoint, in its folder."""

_GONE: Final = frozenset({"NoSuchKey", "NoSuchBucket", "404", "NotFound"})
_REFUSED: Final = frozenset({"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"})

_WRONG_CERTIFICATE: Final = (
    "the certificate of the server in LAMINAR_STORE_ENDPOINT is not trusted; set AWS_CA_BUNDLE to the PEM file of the "
    "authority that signed it"
)


class GivenUp(Exception):
    """The caller no longer waits for this checkpoint."""


class CheckpointStore:
    def __init__(
        self, address: StoreAddress, *, client: Any = None, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._bucket, self._prefix = address.bucket, address.prefix
        self._client = client or _client(address)
        self._wait = wait

    def upload(self, folder: Path, key: str) -> str:
        """Uploads a verified checkpoint; returns its address. Raises `ConnectionError`."""
        manifests = {f"{PROGRESS_FOLDER}/{MANIFEST_FILE}": folder / PROGRESS_FOLDER, MANIFEST_FILE: folder}
        for below in manifests.values():
            self.upload_parts(below, key, _parse(below, (below / MANIFEST_FILE).read_bytes()).parts)
        for name, below in manifests.items():
            content = (below / MANIFEST_FILE).read_bytes()
            self._try(
                partial(self._client.put_object, Bucket=self._bucket, Key=self._name(f"{key}/{name}"), Body=content)
            )
        return self.address_of(key)

    def upload_parts(self, folder: Path, key: str, parts: Mapping[str, CheckpointPart]) -> None:
        """Uploads parts; one without a local file must be in the store already. Raises `ConnectionError`."""
        for name, part in parts.items():
            self._put_part(folder / name, f"{key}/{STORED_PARTS}/{part.sha256}", part)

    def address_of(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._name(key)}"

    def open(self, uri: str, into: Path, *, is_given_up: Callable[[], bool] = lambda: False) -> Path:
        """Returns a folder with the data's progress and the manifest of the trainer's parts. All parts exist in the
        store with the right size; the loading process fetches those it needs. Raises `CheckpointUnverified`,
        `ConnectionError` and `GivenUp`."""
        folder = into / hashlib.sha256(uri.encode()).hexdigest()[:24]
        if _is_open(folder):
            return folder
        into.mkdir(parents=True, exist_ok=True)
        opening = Path(tempfile.mkdtemp(prefix="opening-", dir=into))
        try:
            key = self._key_of(uri)
            progress = self._read_manifest(key, f"{PROGRESS_FOLDER}/{MANIFEST_FILE}")
            parts = self._read_manifest(key, MANIFEST_FILE)
            for name, part in _parse(folder, parts).parts.items():
                if is_given_up():
                    raise GivenUp
                self._refuse_unless_there(key, name, part)
            self.fetch_parts(uri, _parse(folder, progress).parts, opening / PROGRESS_FOLDER)
            (opening / PROGRESS_FOLDER / MANIFEST_FILE).write_bytes(progress)
            verify_checkpoint(opening / PROGRESS_FOLDER)
            (opening / ORIGIN_FILE).write_text(uri)
            note_elsewhere(opening)
            (opening / MANIFEST_FILE).write_bytes(parts)
            _put_in_place(opening, folder)
        finally:
            shutil.rmtree(opening, ignore_errors=True)
        return folder

    def _read_manifest(self, key: str, manifest: str) -> bytes:
        name = self._name(f"{key}/{manifest}")
        content: bytes = self._try(lambda: self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read())
        return content

    def _refuse_unless_there(self, key: str, name: str, part: CheckpointPart) -> None:
        stored = self._name(f"{key}/{STORED_PARTS}/{part.sha256}")
        num_bytes = self._try(lambda: self._size_of(stored))
        if num_bytes != part.num_bytes:
            state = "is missing" if num_bytes is None else f"has {num_bytes} bytes"
            raise CheckpointUnverified(f"the store: {name} of {key} {state}; the manifest lists {part.num_bytes} bytes")

    def fetch_parts(self, uri: str, parts: Mapping[str, CheckpointPart], folder: Path) -> None:
        """Downloads parts of a checkpoint, without verifying them."""
        key, report = self._key_of(uri), progress_reporter()
        how = {"Config": _transfer(), "Callback": lambda num_bytes: report()}
        for name, part in parts.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            stored = self._name(f"{key}/{STORED_PARTS}/{part.sha256}")
            with working("fetch"):  # boto downloads to a temporary name first
                self._try(partial(self._client.download_file, self._bucket, stored, str(target), **how))

    def tensor_names(self, uri: str, part: CheckpointPart) -> list[str]:
        """Reads the tensor names of a safetensors file, and only its head."""
        stored = self._name(f"{self._key_of(uri)}/{STORED_PARTS}/{part.sha256}")
        length = int.from_bytes(self._read_range(stored, range(8)), "little")
        if length > part.num_bytes:
            raise CheckpointUnverified(f"{stored}: the head's length of {length} bytes exceeds the file")
        return [name for name in json.loads(self._read_range(stored, range(8, 8 + length))) if name != "__metadata__"]

    def _read_range(self, name: str, wanted: range) -> bytes:
        how = {"Bucket": self._bucket, "Key": name, "Range": f"bytes={wanted.start}-{wanted.stop - 1}"}
        content: bytes = self._try(lambda: self._client.get_object(**how)["Body"].read())
        return content

    def _put_part(self, file: Path, key: str, part: CheckpointPart) -> None:
        name = self._name(key)
        if self._try(lambda: self._size_of(name)) == part.num_bytes:
            return
        if not file.exists():
            raise ConnectionError(f"checkpoint store: {name} is missing; another host was to upload it")
        report = progress_reporter()  # boto reports on threads of its own
        how = {"Config": _transfer(), "Callback": lambda num_bytes: report()}
        with working("upload"):
            self._try(lambda: self._client.upload_file(str(file), self._bucket, name, **how))

    def _size_of(self, name: str) -> int | None:
        try:
            size: int = self._client.head_object(Bucket=self._bucket, Key=name)["ContentLength"]
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in _GONE:
                return None
            raise
        return size

    def _try(self, call: Callable[[], T]) -> T:
        """Calls, and retries while the store is busy or unreachable."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, SSLError

        for wait_s in _waits():
            try:
                return call()
            except (ClientError, BotoCoreError, Boto3Error) as error:
                if isinstance(error, SSLError) or isinstance(error.__context__, SSLError):
                    raise ConnectionError(f"{_WRONG_CERTIFICATE}: {error}") from error
                code = _code_of(error)
                if code in _GONE:
                    raise CheckpointUnverified(f"the store has no such object: {error}") from error
                if code in _REFUSED or wait_s is None:
                    raise ConnectionError(f"checkpoint store: {error}") from error
                log.warning("checkpoint store is busy or unreachable, retry in_s=%.0f error=%s", wait_s, error)
                report_progress()
                self._wait(wait_s)
        raise AssertionError("the last wait is None")

    def _key_of(self, uri: str) -> str:
        parts = urlsplit(uri)
        name, prefix = parts.path.strip("/"), f"{self._prefix}/" if self._prefix else ""
        if parts.scheme != "s3" or parts.netloc != self._bucket or not name.startswith(prefix):
            raise ValueError(f"resume_from: must be an address in s3://{self._bucket}/{self._prefix}; got {uri!r}")
        return name.removeprefix(prefix)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCheckpoints:
    """A store, and the local folder whose relative paths are its keys."""

    store: CheckpointStore
    root: Path

    @classmethod
    def from_environment(cls) -> "RemoteCheckpoints | None":
        """None without LAMINAR_STORE_URL. Raises `ValueError` if the settings are wrong."""
        address = StoreAddress.from_environment(os.environ)
        if address is None:
            return None
        return cls(store=CheckpointStore(address), root=Settings.from_environment().store)

    def upload(self, folder: Path) -> str:
        return self.store.upload(folder, self.key_of(folder))

    def key_of(self, folder: Path) -> str:
        return folder.resolve().relative_to(self.root.resolve()).as_posix()

    def uri_of(self, folder: Path) -> str:
        """The address that a checkpoint was fetched from or uploaded to."""
        origin = folder / ORIGIN_FILE
        return origin.read_text() if origin.exists() else self.store.address_of(self.key_of(folder))

    def open(self, uri: str, *, is_given_up: Callable[[], bool] = lambda: False) -> Path:
        return self.store.open(uri, self.root / FETCHED, is_given_up=is_given_up)


def _client(address: StoreAddress) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise ValueError("LAMINAR_STORE_URL: an s3 address needs boto3; install it on this node") from error
    config = Config(retries={"mode": "standard", "total_max_attempts": 4}, **address.config_options)
    return boto3.client("s3", config=config, **address.client_options)


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=_MULTIPART_BYTES, multipart_chunksize=_MULTIPART_BYTES, max_concurrency=_MOST_AT_ONCE
    )


def _waits() -> Iterator[float | None]:
    yield from (FIRST_WAIT_S * 2**number for number in range(TRIES - 1))
    yield None


def _code_of(error: BaseException) -> str:
    """boto3 wraps the errors of a transfer's calls."""
    response = getattr(error, "response", None) or getattr(error.__context__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _is_open(folder: Path) -> bool:
    try:
        return bool(survey_checkpoint(folder) and verify_checkpoint(folder / PROGRESS_FOLDER))
    except CheckpointUnverified:
        return False


def _put_in_place(opened: Path, folder: Path) -> None:
    """Renames it into place, unless another process of this host did so first and may have begun to fetch."""
    if not _is_open(folder):
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(FileExistsError):
            opened.rename(folder)


def _parse(folder: Path, content: bytes) -> CheckpointManifest:
    try:
        return CheckpointManifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointUnverified(f"{folder}: {MANIFEST_FILE} is not a manifest: {error}") from error
