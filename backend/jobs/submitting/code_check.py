"""Checks that a customer's environment file defines what the engine calls. Parsed, never run, in a separate process.

Invariants:
- a file that crashes Python's parser crashes only that process, and is refused;
- the process has seconds of time, little memory, no environment, and none of our code to import.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_TIMEOUT_S: Final = 10.0
_MEMORY: Final = 512 * 2**20  # CPython's own limits apply first; this one is the backstop
_PARSER: Final = """
import ast, json, sys
try:
    tree = ast.parse(sys.stdin.buffer.read())
except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    print(json.dumps({"line": getattr(error, "lineno", None), "message": getattr(error, "msg", None) or str(error)}))
    raise SystemExit
names = set()
for node in tree.body:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names.add(node.name)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        names |= {alias.asname or alias.name for alias in node.names}
    else:
        names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
        names |= {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef)}
print(json.dumps({"names": sorted(names)}))
"""


def check_code(code: str, wanted: Sequence[str]) -> str | None:
    """One sentence for the author; None if the file may be tried."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PARSER],
            input=code.encode(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            env={},
            preexec_fn=_limit_resources,
            check=False,
        )
        answer = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return "environment.code cannot be parsed: Python's parser failed or timed out. Simplify the file."
    if "names" not in answer:
        place = f" in line {answer['line']}" if answer["line"] else ""
        return f"environment.code is not valid Python{place}: {answer['message']}."
    missing = [name for name in wanted if name not in answer["names"] and "*" not in answer["names"]]
    if missing:
        return f"environment.code does not define {' and '.join(missing)}."
    return None


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(_TIMEOUT_S), int(_TIMEOUT_S)))
