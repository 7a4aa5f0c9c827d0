"""A bench as a command: measures a given number of something, and prints its figures by name."""

import argparse
import json
import os
from collections.abc import Callable, Mapping

import django


def told(about: str | None, measured: Callable[[int], Mapping[str, float]], *, of: str, many: int) -> int:
    """`--OF` sets the number."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(f"--{of}", dest="many", type=int, default=many)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    django.setup()
    figures = measured(arguments.many)
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:>20} {value:10.1f}" for name, value in figures.items()))
    return 0
