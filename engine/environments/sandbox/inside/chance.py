"""Randomness that follows from a number. Some programs of `codeio` use the machine's own: an unseeded generator, the
system's random bytes, or names of temporary files. The judge draws the question again and must get the same one.

Invariant: `settled` restores all that it replaces; only the state of the two modules' own generators changes.
"""

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def settled(number: int) -> Iterator[None]:
    drawn, own_seed = random.Random(number), random.seed
    with ExitStack() as until_drawn:

        def replace(module: object, name: str, by: Any) -> None:
            until_drawn.enter_context(patch.object(module, name, by))

        replace(random, "seed", lambda a=None, version=2: own_seed(number if a is None else a, version))
        replace(os, "urandom", drawn.randbytes)
        replace(random, "_urandom", drawn.randbytes)
        replace(tempfile, "_name_sequence", _Names(number))
        for flags in ("_text_openflags", "_bin_openflags"):
            replace(tempfile, flags, getattr(tempfile, flags) & ~os.O_EXCL)
        random.seed(number)
        if "numpy" in sys.modules:
            numpy = sys.modules["numpy"].random
            default_rng, seed = numpy.default_rng, number % 2**32
            replace(numpy, "default_rng", lambda given=None: default_rng(seed if given is None else given))
            numpy.seed(seed)
        yield


class _Names:
    """Names of temporary files. An existing file comes from an earlier draw of the question and is overwritten."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)

    def __iter__(self) -> "_Names":
        return self

    def __next__(self) -> str:
        return "".join(self._chance.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))
