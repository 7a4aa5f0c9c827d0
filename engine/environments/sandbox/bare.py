"""A process with the sandbox's limits and without its walls, for hosts that have no sandbox. Only for programs that the
engine itself interprets, such as a chat template or a tokenizer: they get memory and processor time, and no file.

Invariant: the process ends with the thread that started it.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from engine.environments.sandbox.starting import program_at

# The kernel counts a user's processes, the engine's own too: the limit would be met already.
_NOT_ALONE: Final = frozenset({"RLIMIT_NPROC"})


class BareProcess:
    """A folder that is removed with the process: the files that lie in /box in a sandbox."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="laminar-bare-"))
        for name, text in files.items():
            (self._folder / name).write_text(text)

    def command(self, setup: Mapping[str, object], resources: list[tuple[str, int, int]]) -> list[str]:
        setup = {**setup, "limits": [each for each in resources if each[0] not in _NOT_ALONE]}
        python = (sys.executable, "-s", "-P", "-B", "-X", "utf8", str(self._folder / "bootstrap.py"))
        return [program_at("setpriv"), "--pdeathsig", "KILL", "--", *python, json.dumps(setup)]

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
