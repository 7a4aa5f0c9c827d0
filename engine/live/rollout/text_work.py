"""The text work of a replica: chat template and tokenizer work in parallel with decoding.

    loop: begin(work, then) ──▶ worker thread: work() ──▶ loop: then(its value, or its exception)

Invariants:
- `then` runs on the loop's thread, once for each piece of work, in the order of `begin`;
- after `settle` nothing is pending, so that every sample's state is complete.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from engine.live.body.loop import BodyCall
from engine.live.texts.text_process import LONGEST_CALL_S
from engine.pipeline.messages.message import Message
from engine.process.progress import worker_progress, working

T = TypeVar("T")


class TextWork(Protocol):
    def begin(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None: ...

    def finish(self) -> None:
        """Calls `then` for the work that has ended."""

    def settle(self) -> None:
        """Waits for all work, and finishes it."""


class InlineTexts:
    """For texts that cost microseconds: `begin` does all."""

    def begin(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        then(_attempt(work))

    def finish(self) -> None: ...

    def settle(self) -> None: ...


class ThreadedTexts:
    """For texts that another process makes: a worker thread waits for them."""

    def __init__(self, on_loop: Callable[[BodyCall], None]) -> None:
        """`on_loop` calls a body that has `on_texts`."""
        self._on_loop = on_loop
        self._pending: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        progress = worker_progress()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="texts", initializer=progress.attach_thread)

    def begin(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        future: Future[Any] = Future()
        self._pending.append((future, then))
        self._worker.submit(self._do, work, future)

    def finish(self) -> None:
        while self._pending and self._pending[0][0].done():
            self._finish_next()

    def settle(self) -> None:
        while self._pending:
            with working("texts", constant_s=LONGEST_CALL_S):
                self._finish_next()

    def _do(self, work: Callable[[], object], future: Future[Any]) -> None:
        future.set_result(_attempt(work))
        self._on_loop(_finish_texts)

    def _finish_next(self) -> None:
        future, then = self._pending.popleft()
        then(future.result())


def _attempt(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - template and tokenizer may raise anything for a user's text
        return error


def _finish_texts(body: Any) -> list[Message]:
    messages: list[Message] = body.on_texts()
    return messages
