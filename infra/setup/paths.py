"""Paths of one copy of Laminar: all that its set-up reads and makes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Paths:
    """The paths of one environment of one copy."""

    def __init__(self, root: Path, environment: str = "venv") -> None:
        self.locks = root / "infra" / "locks"
        self.state = root / ".laminar"
        self.venv = self.state / environment
        self.python = self.venv / "bin" / "python"
        self.stamp = self.venv / "laminar-stamp.json"
        self.log = self.state / "logs" / ("setup.log" if environment == "venv" else f"setup-{environment}.log")
        self.wheels = self.state / "wheels"
