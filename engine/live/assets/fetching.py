"""An asset's bytes, part by part, from the control plane or by its links from a bucket.

    GET {control}/internal/engine/assets/<id>/parts/<sha256>  ──200──▶ the bytes
                                                              ──302──▶ a link of minutes: GET it without the token

Invariants:
- a part is written only when its hash is the manifest's, and a manifest is believed only if its hash is the order's;
- what is there already and verifies is not fetched again, whoever was killed while fetching it;
- the token goes to the control plane only: no link and no proxy sees it;
- whatever is away for a while costs time; for longer it is `ConnectionError`, which no customer is to blame for.
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

from engine.spec.asset_manifest import PART_BYTES, RANGE, AssetManifest, ManifestFile, part_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")

AT_ONCE: Final = 4
TIMEOUT_S: Final = 30.0
WAITS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Half a minute, for a server that is being restarted."""
MOST_MANIFEST_BYTES: Final = 64 * 2**20
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class NotGiven(Exception):
    """The control plane gives it not, or no longer: the attempt has ended."""

    retryable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    control_url: str
    token: str

    def manifest(self, asset: str, sha256: str) -> AssetManifest:
        """Raises `ConnectionError`, `NotGiven`."""

        def verified(content: bytes) -> AssetManifest | None:
            try:
                found = AssetManifest.model_validate_json(content)
            except ValidationError:
                return None
            return found if found.sha256 == sha256 else None

        return self._until_good(f"{asset}/manifest", MOST_MANIFEST_BYTES, verified)

    def fill(self, folder: Path, asset: str, manifest: AssetManifest, *, still_here: Callable[[], None]) -> None:
        """`still_here` is called with every part, and raises what ends this. Raises `ConnectionError`, `NotGiven`."""
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
                    putting = [
                        threads.submit(self._put, handle, asset, file, number, is_new=is_new)
                        for number in range(len(file.parts))
                    ]
                    try:
                        for done in as_completed(putting):
                            done.result()
                            still_here()
                    except BaseException:
                        threads.shutdown(cancel_futures=True)  # before the file is closed that they write to
                        raise

    def _put(self, handle: int, asset: str, file: ManifestFile, number: int, *, is_new: bool) -> None:
        num_bytes, at, sha256 = part_bytes(file.num_bytes, number), number * PART_BYTES, file.parts[number]
        if not is_new and _is(os.pread(handle, num_bytes, at), sha256):
            return

        def verified(content: bytes) -> bytes | None:
            return content if _is(content, sha256) else None

        content = memoryview(self._until_good(f"{asset}/parts/{sha256}", num_bytes, verified))
        while content:
            written = os.pwrite(handle, content, at)
            content, at = content[written:], at + written

    def _until_good(self, path: str, most: int, verified: Callable[[bytes], T | None]) -> T:
        said: object = "what came is not what its hash says"
        for wait_s in _waits():
            try:
                found = verified(self._get(path, most))
                if found is not None:
                    return found
            except HTTPError as error:
                if error.code in (401, 403, 404) and error.url.startswith(self.control_url):
                    raise NotGiven(f"the control plane answers {error.code} to {path}") from error
                said = error
            except (OSError, http.client.HTTPException) as error:
                said = error
            if wait_s is None:
                break
            log.warning("fetching again in_s=%.1f path=%s: %s", wait_s, path, said)
            time.sleep(wait_s)
        raise ConnectionError(f"fetching {path}: {said}")

    def _get(self, path: str, most: int) -> bytes:
        url = f"{self.control_url}/internal/engine/assets/{path}"
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        try:
            return _read(_DIRECTLY.open(asked, timeout=TIMEOUT_S), most)
        except HTTPError as error:
            link, wanted = error.headers.get("Location", ""), error.headers.get(RANGE, "")
            if error.code not in _REDIRECTS or not link.startswith(("http://", "https://")):
                raise
        linked = urllib.request.Request(link, headers={"Range": wanted} if wanted else {})
        return _read(urllib.request.urlopen(linked, timeout=TIMEOUT_S), most)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """It is an `HTTPError`, for us to follow without the token."""


_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def _read(response: Any, most: int) -> bytes:
    with response:
        content: bytes = response.read(most + 1)
    return content


def _is(content: bytes, sha256: str) -> bool:
    return hashlib.sha256(content).hexdigest() == sha256


def _waits() -> Iterator[float | None]:
    yield from WAITS_S
    yield None
