"""Fetches an asset part by part, from the control plane or through its links from a bucket.

    GET {control}/internal/engine/assets/<id>/parts/<sha256>  ──200──▶ the bytes
                                                              ──302──▶ a short-lived link: GET it without the token

Invariants:
- a part is written only if its hash matches the manifest, and a manifest is used only if its hash matches the order;
- parts that are present and verify are not fetched again, even after a killed fetch;
- the token goes to the control plane only: no link and no proxy sees it;
- a short outage costs time; a longer one is a `ConnectionError`, for which no customer is to blame.
"""

import hashlib
import http.client
import logging
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError

from pydantic import ValidationError

from engine.spec.assets.asset_manifest import PART_BYTES, RANGE, AssetManifest, ManifestFile, part_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE: Final = 4
TIMEOUT_S: Final = 30.0
WAITS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Half a minute, enough for a server restart."""
MOST_MANIFEST_BYTES: Final = 64 * 2**20
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class AssetRefused(Exception):
    """The control plane refuses the asset; perhaps the attempt has ended."""

    retryable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    control_url: str
    token: str

    def manifest(self, asset: str, sha256: str) -> AssetManifest:
        """Raises `ConnectionError`, `AssetRefused`."""

        def verified(content: bytes) -> AssetManifest | None:
            try:
                manifest = AssetManifest.model_validate_json(content)
            except ValidationError:
                return None
            return manifest if manifest.sha256 == sha256 else None

        return self._fetch_verified(f"{asset}/manifest", MOST_MANIFEST_BYTES, verified)

    def fill(self, folder: Path, asset: str, manifest: AssetManifest, *, report_progress: Callable[[], None]) -> None:
        """Calls `report_progress` after each part. Raises `ConnectionError`, `AssetRefused`."""
        wanted = {file.name for file in manifest.files}
        for left in folder.iterdir():
            if left.name not in wanted:
                left.unlink()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as threads:
            for file in manifest.files:
                (folder / file.name).touch(mode=0o600)
                with (folder / file.name).open("r+b") as opened:
                    handle = opened.fileno()
                    is_new = os.fstat(handle).st_size == 0
                    opened.truncate(file.num_bytes)
                    writes = [
                        threads.submit(self._put, handle, asset, file, number, is_new=is_new)
                        for number in range(len(file.parts))
                    ]
                    try:
                        for done in as_completed(writes):
                            done.result()
                            report_progress()
                    except BaseException:
                        threads.shutdown(cancel_futures=True)  # they must end before their file is closed
                        raise

    def _put(self, handle: int, asset: str, file: ManifestFile, number: int, *, is_new: bool) -> None:
        num_bytes, at, sha256 = part_bytes(file.num_bytes, number), number * PART_BYTES, file.parts[number]
        if not is_new and _has_hash(os.pread(handle, num_bytes, at), sha256):
            return

        def verified(content: bytes) -> bytes | None:
            return content if _has_hash(content, sha256) else None

        content = memoryview(self._fetch_verified(f"{asset}/parts/{sha256}", num_bytes, verified))
        while content:
            written = os.pwrite(handle, content, at)
            content, at = content[written:], at + written

    def _fetch_verified(self, path: str, most: int, verified: Callable[[bytes], T | None]) -> T:
        problem: object = "the content does not match its hash"
        for wait_s in _waits():
            try:
                content = verified(self._get(path, most))
                if content is not None:
                    return content
            except HTTPError as error:
                if error.code in (401, 403, 404) and error.url.startswith(self.control_url):
                    raise AssetRefused(f"the control plane answers {error.code} to {path}") from error
                problem = error
            except (OSError, http.client.HTTPException) as error:
                problem = error
            if wait_s is None:
                break
            log.warning("fetch failed, retry in_s=%.1f path=%s error=%s", wait_s, path, problem)
            time.sleep(wait_s)
        raise ConnectionError(f"cannot fetch {path}: {problem}")

    def _get(self, path: str, most: int) -> bytes:
        url = f"{self.control_url}/internal/engine/assets/{path}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        try:
            return _read(_DIRECTLY.open(request, timeout=TIMEOUT_S), most)
        except HTTPError as error:
            link, span = error.headers.get("Location", ""), error.headers.get(RANGE, "")
            if error.code not in _REDIRECTS or not link.startswith(("http://", "https://")):
                raise
        request = urllib.request.Request(link, headers={"Range": span} if span else {})
        return _read(urllib.request.urlopen(request, timeout=TIMEOUT_S), most)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Makes the redirect an `HTTPError`, so that it is followed without the token."""


_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def _read(response: Any, most: int) -> bytes:
    with response:
        content: bytes = response.read(most + 1)
    return content


def _has_hash(content: bytes, sha256: str) -> bool:
    return hashlib.sha256(content).hexdigest() == sha256


def _waits() -> Iterator[float | None]:
    yield from WAITS_S
    yield None
