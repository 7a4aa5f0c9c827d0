"""A process of vLLM's own environment that answers a line of JSON with a line of JSON.

Invariant: between two lines it waits without spinning, so that several of them can be measured in turns.
"""

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from engine.inference.vllm.interpreter import ROOT, STARTED_WITH, find_vllm_python
from engine.spec.node_variables import read_variable

Ask = Callable[[dict[str, Any]], dict[str, Any]]

ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", **STARTED_WITH}


def vllm_python(named: str | None) -> str | None:
    try:
        return named or str(find_vllm_python(read_variable("LAMINAR_VLLM_PYTHON")))
    except ValueError:
        return None


@contextlib.contextmanager
def process_of(python: str, module: str, words: Sequence[str]) -> Iterator[Ask]:
    command = [python, "-m", module, *words]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd()
    )
    assert process.stdin is not None and process.stdout is not None
    sent, answered = process.stdin, process.stdout

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        sent.write(json.dumps(question) + "\n")
        sent.flush()
        for line in answered:
            if line.startswith("{"):  # vLLM prints other lines, too
                answer: dict[str, Any] = json.loads(line)
                if "failed" in answer:
                    raise RuntimeError(answer["failed"])
                return answer
        raise RuntimeError("vLLM's process ended; run it by hand to see why: " + " ".join(command))

    try:
        yield ask
    finally:
        sent.close()
        process.wait(timeout=60)


def answer_lines(answer: Ask) -> None:
    """The process's side. An exception becomes the answer, and the next line is served."""
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the caller receives it
            traceback.print_exc()
            reply = {"failed": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def without_end(folder: Path) -> None:
    """Removes the end token from a model's folder, so that answers have the requested length."""
    (folder / "generation_config.json").unlink()
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": []}))
