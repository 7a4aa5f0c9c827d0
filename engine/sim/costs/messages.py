"""Messages between processes, and data's log: the costs of a decision; its computing time counts as zero."""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant

MESSAGE_S: Final = Constant(
    name="message", value=2e-3, unit="s", origin="assumed", source="between two hosts, with what waits before it"
)
PERSIST_S: Final = Constant(
    name="persist", value=2e-3, unit="s", origin="assumed", source="records appended to a log on NVMe and synced"
)


def message_s(book: Book = AS_THEY_STAND) -> float:
    return book(MESSAGE_S)


def persist_s(book: Book = AS_THEY_STAND) -> float:
    return book(PERSIST_S)
