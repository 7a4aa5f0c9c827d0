"""Starts a node of a Ray cluster: `python -m engine.node -- ray start --address=ray-head:6379 --block`.

    try to start a sandbox, as a job's worker would ──▶ label of the node: its name, or none ──▶ exec the command
    search for vLLM's interpreter                   ──▶ another label: found, or none

The labels are passed in the environment (RAY_OVERRIDE_LABELS), which works for any command: KubeRay writes its own. Ray
adds them to those of `--labels`.

Invariants:
- the node starts even if the trial fails: most environments need no sandbox;
- the process becomes the command: signals and the exit code are Ray's.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from engine.environments.sandbox.gvisor import is_chosen
from engine.environments.sandbox.outcome import Finished, Limits
from engine.environments.sandbox.run import run_python
from engine.inference.vllm.interpreter import find_vllm_python
from engine.spec.environments.sandbox import NO_SANDBOX, SANDBOX_LABEL
from engine.spec.logs.log_text import form_of, log_to
from engine.spec.node_variables import read_variable
from engine.spec.vllm_label import FOUND, NO_VLLM, VLLM_LABEL

log = logging.getLogger(__name__)

LABELS_VARIABLE: Final = "RAY_OVERRIDE_LABELS"
TRIAL: Final = "print(6 * 7)"
TRIAL_S: Final = 60.0  # a machine is busy just after its start; a sandbox takes 0.03 s, gVisor 0.3 s
USAGE: Final = "usage: python -m engine.node -- COMMAND, which starts Ray: ray start --address=ray-head:6379 --block"


def main(words: Sequence[str]) -> NoReturn:
    if len(words) < 2 or words[0] != "--":
        sys.exit(USAGE)
    log_to(fmt="%(asctime)s %(levelname)s %(message)s", form=form_of(read_variable("LAMINAR_LOG_FORMAT")))
    environment = {**os.environ, LABELS_VARIABLE: labels_with(sandbox_here(), vllm_here(), os.environ)}
    os.execvpe(words[1], list(words[1:]), environment)  # the operator chooses the command


def sandbox_here() -> str:
    """The name of this machine's sandbox for untrusted code; `NO_SANDBOX` and an error in the log if none starts."""
    outcome = run_python(TRIAL, limits=Limits(wall_s=TRIAL_S))
    if isinstance(outcome, Finished) and outcome.output.stdout == "42\n":
        name = "gvisor" if is_chosen() else "bubblewrap"
        log.info("sandbox=%s", name)
        return name
    log.error(
        "sandbox=%s %s; jobs that need one cannot run here, see infra/OPERATING.md, The sandbox", NO_SANDBOX, outcome
    )
    return NO_SANDBOX


def vllm_here() -> str:
    try:
        log.info("vllm=%s", find_vllm_python(read_variable("LAMINAR_VLLM_PYTHON")))
    except ValueError as error:
        log.info("vllm=%s %s", NO_VLLM, error)
        return NO_VLLM
    return FOUND


def labels_with(sandbox: str, vllm: str, environment: Mapping[str, str]) -> str:
    """Adds our labels to those of the environment. Raises `ValueError` if those are not JSON."""
    given = environment.get(LABELS_VARIABLE) or "{}"
    return json.dumps({**json.loads(given), SANDBOX_LABEL: sandbox, VLLM_LABEL: vllm})


if __name__ == "__main__":
    main(sys.argv[1:])
