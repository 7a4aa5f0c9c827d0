"""The first code in a sandbox: sets its limits, reports that the sandbox has started, and runs the untrusted code.

    argv[1]: {"limits": [[resource, soft, hard], …], "status": pipe, "requests": pipe or null, "answers": pipe or null,
              "forks": whether each call gets a process of its own}        a pipe is a descriptor, or has a path
    status:  "r" before the untrusted code's first line; "m" if the code died of a MemoryError

The kernel counts processes per user namespace: the limit must be set in here, not by the launcher.
"""

import json
import os
import resource
import sys
import types
from pathlib import Path

BOX = str(Path(__file__).parent)  # /box in a sandbox
MAIN = f"{BOX}/main.py"
PIPES = {"status": os.O_WRONLY, "requests": os.O_RDONLY, "answers": os.O_WRONLY}


def main() -> None:
    setup = json.loads(sys.argv[1])
    kept = sorted(setup[name] for name in PIPES if isinstance(setup[name], int))
    for low, high in zip([2, *kept], [*kept, 1 << 16], strict=True):
        os.closerange(low + 1, high)
    for name, flags in PIPES.items():
        if isinstance(setup[name], str):
            setup[name] = os.open(setup[name], flags)
    for name, soft, hard in setup["limits"]:
        resource.setrlimit(getattr(resource, name), (soft, hard))
    sys.path[:0] = ["/packages"]
    sys.argv = [MAIN]
    os.write(setup["status"], b"r")
    try:
        module = load()
        if setup["requests"] is not None:
            sys.path.insert(0, BOX)
            from serve import serve  # type: ignore[import-not-found]

            serve(module, setup["requests"], setup["answers"], forks=setup["forks"])
    except MemoryError:
        os.write(setup["status"], b"m")
        raise


def load() -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = MAIN
    sys.modules["__main__"] = module
    sys.path.insert(0, BOX)  # main.py may be made of several files
    exec(compile(Path(MAIN).read_text(), MAIN, "exec"), module.__dict__)  # noqa: S102 - what this place is for
    return module


if __name__ == "__main__":
    main()
