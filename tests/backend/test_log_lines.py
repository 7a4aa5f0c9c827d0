"""Every process logs one line a record, for any hostile name, as text or as JSON.

Each process configures its logging as at its start, in a separate process, and then logs hostile names.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
HOSTILE: Final = "eve\n2026-01-05 12:00:00,000 ERROR root forged\x1b[2J\r\u202e\u200b\x00"
WEB: Final = """
import logging, sys
from uvicorn import Config
Config("backend.asgi:application", log_level="warning", access_log=False).load()
names = ["uvicorn.error", "uvicorn.access", "django.request", "django.security", "django.server", "backend.jobs"]
"""
WORKER: Final = """
import logging, sys
from backend.celery import app
import django; django.setup()
app.log.setup(loglevel="INFO")
names = ["celery.worker", "celery.app.trace", "celery.beat", "celery.redirected", "kombu", "backend.jobs"]
"""
DRIVER: Final = """
import logging
from engine.live.process.settings import log_form
from engine.spec.logs.log_text import log_to
log_to(fmt="%(asctime)s %(levelname)s %(message)s", form=log_form())
names = ["engine.live.run.attempt", "httpx"]
"""
SUPERVISOR: Final = """
from infra.local.supervisor import _say
names = []
_say("it is " + said)
"""
SAY: Final = """
for name in names:
    log = logging.getLogger(name)
    log.error("it is %s", said)
    log.warning(f"it is {said}")
    try:
        raise ValueError(said)
    except ValueError:
        log.exception("failed it=%s", said)
"""


@pytest.mark.long_except("driver", "local")
@pytest.mark.parametrize(
    ("setup", "num_names"),
    [(WEB, 6), (WORKER, 6), (DRIVER, 2), (SUPERVISOR, 1)],
    ids=["web", "worker", "driver", "local"],
)
def test_log_lines_cannot_be_injected_into(setup: str, num_names: int) -> None:
    program = f"said = {HOSTILE!r}\n{setup}" + (SAY if 'names = ["' in setup else "")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=dict(os.environ), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    lines = (done.stdout + done.stderr).decode().split("\n")
    assert all(line.isprintable() for line in lines)
    named = [line for line in lines if "is eve" in line or "it=eve" in line]
    assert len(named) >= num_names, lines
    escaped = "\\n2026-01-05 12:00:00,000 ERROR root forged\\x1b[2J\\r\\u202e\\u200b\\x00"
    assert all(escaped in line for line in named), named
    others = [line for line in lines if "root forged" in line and line not in named]
    assert all(line.startswith("    ") for line in others), "in a traceback it is indented"


ASKED: Final = """
import warnings
warnings.warn(said)
from django.test import Client
Client(headers={"host": "127.0.0.1", "X-Request-Id": "req_of_ours"}).post("/healthz/nothing/here")
"""


@pytest.mark.long_except("driver", "local")
@pytest.mark.parametrize(
    ("setup", "num_records"),
    [(WEB + SAY + ASKED, 20), (WORKER + SAY, 18), (DRIVER + SAY, 6), (SUPERVISOR, 1)],
    ids=["web", "worker", "driver", "local"],
)
def test_json_log_lines_are_objects_without_forgery(setup: str, num_records: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"said = {HOSTILE!r}\n{setup}"],
        cwd=ROOT, env=os.environ | {"LAMINAR_LOG_FORMAT": "json"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (done.stdout + done.stderr).split("\n") if line]
    assert len(records) >= num_records and {"time", "level", "logger", "message"} <= set.intersection(
        *map(set, records)
    )
    assert not [each for each in records if not each["message"].isprintable() or each["message"].startswith("2026")]
    if ASKED in setup:
        (refused,) = [each for each in records if "/healthz/nothing" in each["message"]]
        assert refused["request_id"] == "req_of_ours"


FORMATTING: Final = ("basicConfig", "Formatter", "StreamHandler", "FileHandler")
MAY_FORMAT: Final = {
    "engine/spec/logs/log_text.py": "here it is done for all",
    "engine/sinks/lines.py": "a job's own log, which is no terminal's: newlines stay",
    "engine/models/make_demo.py": "a tool of a developer's, which names nothing of a stranger's",
}


def test_no_process_formats_its_log_by_itself() -> None:
    loose = []
    for top in ("backend", "engine", "infra"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            for node in ast.walk(ast.parse(text)) if any(f"logging.{each}(" in text for each in FORMATTING) else ():
                called = node.func if isinstance(node, ast.Call) else None
                if not isinstance(called, ast.Attribute) or name in MAY_FORMAT:
                    continue
                of_logging = isinstance(called.value, ast.Name) and called.value.id == "logging"
                if of_logging and called.attr in FORMATTING:
                    loose.append(f"{name}:{called.lineno} logging.{called.attr}")
    assert not loose, loose
