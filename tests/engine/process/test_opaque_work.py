"""Progress in code without signs of life: detected while it works, not while it hangs."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.process.opaque_work import OpaqueWork

LOOKS = 250


@contextmanager
def watched(work: Callable[[threading.Event], None], *, storage: Callable[[], int] = lambda: 0) -> Iterator[OpaqueWork]:
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,))
    thread.start()
    assert thread.ident is not None
    yield OpaqueWork(thread.ident, storage=storage)
    is_over.set()
    thread.join()


def wait(is_over: threading.Event) -> None:
    is_over.wait()


def poll(is_over: threading.Event) -> None:
    while not is_over.wait(0.0005):
        pass


def compile_much(is_over: threading.Event) -> None:
    """Makes another call stack for each path."""

    def call(path: int) -> None:
        if path <= 1:
            is_over.wait(0.0001)
        else:
            (left if path % 2 else right)(path // 2)

    def left(path: int) -> None:
        call(path)

    def right(path: int) -> None:
        call(path)

    path = 1
    while not is_over.is_set():
        path += 1
        call(path)


def test_thread_that_waits_or_polls_runs_out_of_new_states() -> None:
    for hang in (wait, poll):
        with watched(hang) as work:
            assert sum(work.has_moved() for _ in range(LOOKS)) < 30


def test_code_that_works_makes_new_states() -> None:
    with watched(compile_much) as work:
        while sum(work.has_moved() for _ in range(LOOKS)) < 40:
            pass


def test_megabytes_read_from_storage_are_progress() -> None:
    read = [0]
    with watched(wait, storage=lambda: read[0]) as work:
        while any(work.has_moved() for _ in range(30)):
            pass
        read[0] = 2**20 - 1
        assert not work.has_moved()
        read[0] = 2**20
        assert work.has_moved()


def test_compiler_in_another_process_is_progress() -> None:
    with watched(wait) as work:
        while any(work.has_moved() for _ in range(30)):
            pass
        compiler = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert work.has_moved()
        compiler.communicate(b"\n")
