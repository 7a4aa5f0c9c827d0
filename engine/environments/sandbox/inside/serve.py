"""A warm process: answers calls to the functions of main.py, one at a time, until its requests end.

    request  {"nonce": n, "call": name, "arguments": [...]}
    answer   {"nonce": n, "value": ...}, or {"nonce": n, "raised": "the traceback's last lines"}
    question {"nonce": n, "ask": ...} while a call is in progress, told by {"told": ...}

An answer repeats its request's nonce, so that what a stray thread wrote for an earlier call is not taken for this
one's. Where every call has a process of its own (`forks`), whatever the judged text did to it ends with it.
"""

import gc
import json
import os
import signal
import traceback
from contextlib import suppress
from types import ModuleType

from frames import packed, read_frame, write_frame  # type: ignore[import-not-found]

NUM_LINES = 12
MAX_ANSWER = 1 << 16  # what a pipe holds: a child that writes more waits forever, and its deadline comes


def serve(module: ModuleType, requests: int, answers: int, *, forks: bool) -> None:
    if forks:
        gc.freeze()  # the collector writes to every object, and each copy would get its own of every page
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        if not forks:
            serve_one(module, request, requests, answers)
            continue
        write_frame(answers, {"nonce": request["nonce"], **in_its_own_process(module, request, (requests, answers))})


def in_its_own_process(module: ModuleType, request: dict[str, object], closed: tuple[int, ...]) -> dict[str, object]:
    """The call in a child that is gone, with all that it started, before its answer is read."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for fd in (ours, *closed):
                os.close(fd)  # the pipes that the next call's judges speak through
            os.write(theirs, json.dumps(answer(module, request)).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing above this line belongs to the child
            os._exit(1)
    os.close(theirs)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all but this process and the sandbox's first
    with os.fdopen(ours, "rb") as pipe:
        sent = pipe.read(MAX_ANSWER)
    try:
        found = json.loads(sent)
        return {key: found[key] for key in ("value", "raised") if key in found}
    except (ValueError, TypeError, RecursionError):
        return {"raised": f"the process of this call left no answer (exit code {os.waitstatus_to_exitcode(status)})"}


def serve_one(module: ModuleType, request: dict[str, object], requests: int, answers: int) -> None:
    nonce = request["nonce"]

    def ask(question: object) -> object:
        write_frame(answers, {"nonce": nonce, "ask": question})
        return read_frame(requests)["told"]

    module.__dict__["ask_outside"] = ask
    write_frame(answers, {"nonce": nonce, **answer(module, request)})


def answer(module: ModuleType, request: dict[str, object]) -> dict[str, object]:
    try:
        if request["call"] == "is_ready":  # main.py has been loaded
            return {"value": True}
        value = getattr(module, str(request["call"]))(*request["arguments"])  # type: ignore[misc]
        packed(value)  # what cannot be sent is the function's mistake, too
        return {"value": value}
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - SystemExit too: the process is warm, and the caller is told
        return {"raised": "\n".join(traceback.format_exc().strip().splitlines()[-NUM_LINES:])}
