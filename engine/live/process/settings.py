"""The driver's settings, read from the variables of engine/spec/node_variables.py in one place."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from engine.inference.vllm.interpreter import find_vllm_python
from engine.spec.logs.log_text import OneLine, form_of
from engine.spec.logs.spans import traces_address
from engine.spec.node_variables import read_variable

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def vllm_python(environment: Mapping[str, str] = os.environ) -> Path:
    """The interpreter of vLLM replicas. Raises `ValueError` with the next step if there is none."""
    return find_vllm_python(read_variable("LAMINAR_VLLM_PYTHON", environment))


def log_form(environment: Mapping[str, str] = os.environ) -> type[OneLine]:
    """For processes that log before they have settings. Raises `ValueError`."""
    return form_of(read_variable("LAMINAR_LOG_FORMAT", environment))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store: Path
    node_cache: Path
    node_cache_bytes: int | None
    """None: half of the disk."""
    traces: str = ""
    """The address of the collector of spans; empty: no spans."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        folder = read_variable("LAMINAR_STORE_DIR", environment)
        if not Path(folder).is_absolute():
            raise ValueError(f"LAMINAR_STORE_DIR: must be the absolute path of a folder; got {folder!r}")
        cache = read_variable("LAMINAR_NODE_CACHE_DIR", environment) or f"{folder}/fetched/assets"
        if not Path(cache).is_absolute():
            raise ValueError(f"LAMINAR_NODE_CACHE_DIR: must be the absolute path of a folder; got {cache!r}")
        most = read_variable("LAMINAR_NODE_CACHE_GB", environment)
        if most and not most.isdigit():
            raise ValueError(f"LAMINAR_NODE_CACHE_GB: must be a whole number of gigabytes; got {most!r}")
        collector = read_variable("LAMINAR_OTLP_URL", environment)
        return cls(
            store=Path(folder),
            node_cache=Path(cache),
            node_cache_bytes=int(most) * 10**9 if most else None,
            traces=traces_address(collector) if collector else "",
        )

    @property
    def jobs(self) -> Path:
        """The folder in which each job writes a folder of its own."""
        return self.store / "jobs"

    @property
    def models(self) -> Path:
        return self.store / "models"

    @property
    def data(self) -> Path:
        """Files of prompts, by name."""
        return self.store / "data"

    def attempt_folder(self, *, job: str, attempt: int, fence: int) -> Path:
        """The name includes the fence, so a fenced-off attempt never writes into its successor's folder."""
        if not _PLAIN_NAME.fullmatch(job):
            raise ValueError(f"job: must be letters, digits, dots, dashes and underscores; got {job!r}")
        folder = self.jobs / job / f"attempt-{attempt}-fence-{fence}"
        if folder.resolve() != self.jobs.resolve() / job / folder.name:
            raise ValueError(f"job: must be a folder of its own in {self.jobs}; got a link to {folder.resolve()}")
        return folder
