"""A site with an https address, configured as its operator would: the settings, loaded for that address."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

ROOT = Path(__file__).resolve().parents[3]
PUBLIC_URL = "https://testserver"
_TELL = """
import json, backend.settings as told
names = [name for name in dir(told) if name.startswith(("SECURE_", "SESSION_", "CSRF_"))]
print(json.dumps({name: getattr(told, name) for name in names}))
"""


@pytest.fixture(scope="session")
def https_environment() -> dict[str, str]:
    return os.environ | {"LAMINAR_PUBLIC_URL": PUBLIC_URL, "LAMINAR_ALLOWED_HOSTS": "testserver"}


@pytest.fixture(scope="session")
def _told(https_environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", _TELL]
    done = subprocess.run(command, cwd=ROOT, env=https_environment, capture_output=True, text=True, check=True)
    settings: dict[str, Any] = json.loads(done.stdout)
    return settings


@pytest.fixture
def https_client(settings: Any, _told: dict[str, Any]) -> Callable[..., Client]:
    """Browsers of that site. Requests are http unless they pass `secure=True`."""
    for name, value in _told.items():
        setattr(settings, name, value)
    return Client
