"""The modules that a control-plane process loads cost start time, and memory as long as it lives."""

import subprocess
import sys

import pytest

SELDOM = {"pyarrow", "numpy", "pandas", "boto3", "torch", "ray"}


@pytest.mark.long
def test_web_process_loads_no_rarely_needed_modules() -> None:
    script = f"import backend.asgi, backend.urls, sys; print(*sorted(set(sys.modules) & {SELDOM!r}))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
