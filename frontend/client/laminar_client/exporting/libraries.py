"""A tracker's own library, loaded when an export needs it, or the words that say what to install."""

from importlib import import_module
from types import ModuleType

from ..errors import MissingLibrary


def library(module: str, *, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise MissingLibrary(
            f"An export to {extra} needs {missing.name}, which is not installed: "
            f"run `pip install 'laminar-client[{extra}]'`."
        ) from missing
