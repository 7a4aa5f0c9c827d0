"""A node tries its sandbox before it joins Ray, and its label holds the result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private.label_utils import validate_node_labels
from ray._private.ray_constants import LABELS_ENVIRONMENT_VARIABLE

from engine.node import LABELS_VARIABLE, USAGE
from engine.spec.environments.sandbox import NO_SANDBOX, SANDBOX_LABEL
from engine.spec.vllm_label import FOUND, NO_VLLM, VLLM_LABEL
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
TELLS = f"import os; print(os.environ[{LABELS_VARIABLE!r}], os.getpid())"


def begun(*words: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "engine.node", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


@pytest.mark.sandbox
@pytest.mark.usefixtures("sandbox")
def test_node_labels_its_sandbox_and_becomes_its_command() -> None:
    node = begun("--", sys.executable, "-c", TELLS, **{LABELS_VARIABLE: '{"zone": "a"}', "LAMINAR_SANDBOX": ""})
    output, _ = node.communicate(timeout=120)
    text, pid = output.rsplit(" ", 1)
    labels = json.loads(text)
    assert labels.pop(VLLM_LABEL) in (FOUND, NO_VLLM)
    assert labels == {"zone": "a", SANDBOX_LABEL: "bubblewrap"}
    assert int(pid) == node.pid


def test_node_without_sandbox_starts_and_logs_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    command = ("--", sys.executable, "-c", TELLS)
    output, logged = begun(*command, PATH=path, LAMINAR_VLLM_PYTHON="/nowhere").communicate(timeout=120)
    assert json.loads(output.rsplit(" ", 1)[0]) == {SANDBOX_LABEL: NO_SANDBOX, VLLM_LABEL: NO_VLLM}
    assert "vllm=none" in logged and "'/nowhere'" in logged
    assert "sandbox=none" in logged and "new namespace" in logged and "OPERATING.md" in logged


def test_node_without_a_command_prints_its_usage() -> None:
    node = begun("ray", "start")
    assert USAGE in node.communicate(timeout=120)[1]
    assert node.returncode == 1


def test_ray_accepts_the_labels() -> None:
    assert LABELS_VARIABLE == LABELS_ENVIRONMENT_VARIABLE
    for word in (NO_SANDBOX, "bubblewrap", "gvisor"):
        validate_node_labels({SANDBOX_LABEL: word})
    for word in (FOUND, NO_VLLM):
        validate_node_labels({VLLM_LABEL: word})
