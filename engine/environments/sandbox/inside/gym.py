"""reasoning-gym's generators and scorers; some of the latter evaluate what the model wrote."""

import contextlib
import io
import json
import sys
import types
import warnings
from functools import lru_cache
from typing import Any

warnings.filterwarnings("ignore")  # its dependencies' own, on import
# One of its dependencies draws pictures, which nobody looks at here; drawing takes a third of the time to import.
for name in ("pyplot", "animation", "collections"):
    sys.modules[f"matplotlib.{name}"] = types.ModuleType(name)
for name in ("matplotlib", "mpl_toolkits", "mpl_toolkits.mplot3d"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mpl_toolkits.mplot3d"].__dict__["Axes3D"] = object

import reasoning_gym  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402


def tasks() -> list[str]:
    return sorted(name for name in DATASETS if name != "composite")  # that one is made of others, not of parameters


def question(task: str, params: str, index: int) -> str:
    return str(_made(task, params, index)[1]["question"])


def score(task: str, params: str, index: int, said: str) -> float:
    dataset, entry = _made(task, params, index)
    with contextlib.redirect_stdout(io.StringIO()):
        return float(dataset.score_answer(said, entry))


def warm_up(task: str, params: str) -> None:
    """Loads what a task loads when it is first used, before there are copies of this process."""
    with contextlib.suppress(Exception):  # a wrong setting is told by the first question
        dataset, entry = _made(task, params, 0)
        dataset.score_answer("0", entry)


@lru_cache(maxsize=256)
def _made(task: str, params: str, index: int) -> tuple[Any, Any]:
    dataset = reasoning_gym.create_dataset(task, seed=index, size=1, **json.loads(params))
    return dataset, dataset[0]
