"""A warm process: answers calls to the functions of main.py, one at a time, until its requests end.

    request  {"nonce": n, "call": name, "arguments": [...]}
    answer   {"nonce": n, "value": ...}, or {"nonce": n, "raised": "the traceback's last lines"}
    question {"nonce": n, "ask": ...} while a call is in progress, answered by {"answer": ...}

An answer repeats its request's nonce, so that output of a stray thread of an earlier call is not taken for it. Where
every call has a process of its own (`forks`), all effects of the judged text end with that process.
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
MAX_ANSWER = 1 << 16  # a pipe's capacity: a child that writes more blocks until its deadline


def serve(module: ModuleType, requests: int, answers: int, *, forks: bool) -> None:
    if forks:
        gc.freeze()  # otherwise the collector writes to every object, and each fork copies every page
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        if not forks:
            serve_one(module, request, requests, answers)
            continue
        write_frame(answers, {"nonce": request["nonce"], **call_in_child(module, request, (requests, answers))})


def call_in_child(module: ModuleType, request: dict[str, object], closed: tuple[int, ...]) -> dict[str, object]:
    """Serves the call in a child; the child, and all processes that it started, end before its answer is read."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for fd in (ours, *closed):
                os.close(fd)  # later calls use these pipes
            os.write(theirs, json.dumps(answer(module, request)).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing above this line belongs to the child
            os._exit(1)
    os.close(theirs)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # all but this process and the sandbox's init
    with os.fdopen(ours, "rb") as pipe:
        sent = pipe.read(MAX_ANSWER)
    try:
        message = json.loads(sent)
        return {key: message[key] for key in ("value", "raised") if key in message}
    except (ValueError, TypeError, RecursionError):
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGPROF:  # the timer of `judging`
            return {"raised": "it used up its processor time"}
        return {"raised": f"the process of this call sent no answer (exit code {code})"}


def serve_one(module: ModuleType, request: dict[str, object], requests: int, answers: int) -> None:
    nonce = request["nonce"]

    def ask(question: object) -> object:
        write_frame(answers, {"nonce": nonce, "ask": question})
        return read_frame(requests)["answer"]

    module.__dict__["ask_outside"] = ask
    write_frame(answers, {"nonce": nonce, **answer(module, request)})


def answer(module: ModuleType, request: dict[str, object]) -> dict[str, object]:
    try:
        if request["call"] == "is_ready":  # main.py is loaded
            return {"value": True}
        value = getattr(module, str(request["call"]))(*request["arguments"])  # type: ignore[misc]
        packed(value)  # a value that cannot be sent is the function's fault too
        return {"value": value}
    except MemoryError:
        raise
    except BaseException:  # noqa: BLE001 - SystemExit too: the process stays warm and reports it to the caller
        return {"raised": "\n".join(traceback.format_exc().strip().splitlines()[-NUM_LINES:])}
