"""What the workers of an engine reported about their weights."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.inference.vllm.engine import VllmRolloutEngine
from engine.weights.parts import HeldParts


def recorded(engine: VllmRolloutEngine, monkeypatch: pytest.MonkeyPatch, call: str = "install") -> list[HeldParts]:
    """A list that every such call to the workers fills anew."""
    held: list[HeldParts] = []
    made: Callable[..., list[HeldParts]] = getattr(engine._core, call)

    def record(*arguments: Any, **options: Any) -> list[HeldParts]:
        held[:] = made(*arguments, **options)
        return held

    monkeypatch.setattr(engine._core, call, record)
    return held


def compared(held: list[HeldParts]) -> set[str]:
    """The names of the tensors of which there are parts; all of them have sums."""
    assert held and not any(part.sum is None for worker in held for part in worker.parts)
    return {part.name for worker in held for part in worker.parts}
