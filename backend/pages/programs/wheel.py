"""The wheel of this site's client (frontend/client), built in memory: no build step, download or file.

Invariant: the same sources give the same bytes on every host: no timestamps, no user ids, no compression.
"""

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from django.conf import settings

CLIENT: Final[Path] = settings.ROOT / "frontend" / "client"
_LICENSE: Final[Path] = settings.ROOT / "LICENSE"
_AT: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time of the zip format
_MODE: Final = 0o100644


@cache
def project() -> Mapping[str, Any]:
    table: Mapping[str, Any] = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def wheel_name() -> str:
    return f"{_stem()}-py3-none-any.whl"


@cache
def wheel() -> bytes:
    files = dict(sorted(_modules())) | dict(_metadata())
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    record_name = f"{_stem()}.dist-info/RECORD"
    files[record_name] = f"{record}{record_name},,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, date_time=_AT)
            entry.create_system, entry.external_attr = 3, _MODE << 16  # Unix, on every platform
            archive.writestr(entry, content)
    return buffer.getvalue()


def _stem() -> str:
    return f"{project()['name'].replace('-', '_')}-{project()['version']}"


def _modules() -> Iterator[tuple[str, bytes]]:
    package = CLIENT / project()["name"].replace("-", "_")
    for path in package.rglob("*"):
        if path.suffix == ".py" or path.name == "py.typed":
            yield path.relative_to(CLIENT).as_posix(), path.read_bytes()


def _metadata() -> Iterator[tuple[str, bytes]]:
    metadata, folder = project(), f"{_stem()}.dist-info"
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {metadata['name']}",
        f"Version: {metadata['version']}",
        f"Summary: {metadata['description']}",
        f"License-Expression: {metadata['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {metadata['requires-python']}",
        *(f"Requires-Dist: {each}" for each in metadata["dependencies"]),
    ]
    for extra, requirements in metadata["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {each}; extra == "{extra}"' for each in requirements]
    readme = (CLIENT / metadata["readme"]).read_text(encoding="utf-8")
    text = "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])
    yield f"{folder}/METADATA", text.encode()
    yield f"{folder}/WHEEL", b"Wheel-Version: 1.0\nGenerator: laminar\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    commands = "".join(f"{name} = {function}\n" for name, function in metadata["scripts"].items())
    yield f"{folder}/entry_points.txt", f"[console_scripts]\n{commands}".encode()
    yield f"{folder}/licenses/LICENSE", _LICENSE.read_bytes()


def _digest(content: bytes) -> str:
    return re.sub("=+$", "", base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode())
