"""Imports a tracker's library on demand, or raises an error with the command to install it."""

from importlib import import_module
from types import ModuleType

from ..errors import MissingLibrary


def library(module: str, *, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise MissingLibrary(
            f"An export to {extra} needs {missing.name}, which is not installed. "
            f"Run `pip install 'laminar-client[{extra}]'`."
        ) from missing
