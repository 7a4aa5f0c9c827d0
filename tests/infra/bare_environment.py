"""Import what an image's commands import, in an environment that holds no more than its locks.

    python -m tests.infra.bare_environment web infra/locks/backend.txt

Packages that are installed here and in none of the locks are as if they were not: a module that another package happens
to bring (Ray brings `packaging`, which Celery's broker wants) is missing here as it is in the image. With no locks
everything counts, for an environment that is really bare.
"""

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder, packages_distributions
from pathlib import Path
from types import ModuleType

_EVERYTHING = DistributionFinder.Context()
PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)


class OfTheLocks(DistributionFinder):
    """Finds as Python does, but no package that only others than these distributions bring."""

    def __init__(self, distributions: set[str]) -> None:
        self._distributions = distributions
        self._refused = {
            package
            for package, owners in packages_distributions().items()
            if not distributions.intersection(map(normal, owners))
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_refused = fullname.partition(".")[0] in self._refused
        return None if is_refused else PathFinder.find_spec(fullname, path, target)

    def find_distributions(self, context: DistributionFinder.Context = _EVERYTHING) -> Iterator[Distribution]:
        found = MetadataPathFinder.find_distributions(context)
        return (each for each in found if normal(each.metadata["Name"]) in self._distributions)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_in(locks: Sequence[str]) -> set[str]:
    return {normal(name) for lock in locks for name in PINNED.findall(Path(lock).read_text())}


def web() -> None:
    """Web, worker, beat and `manage.py`."""
    import django

    django.setup()
    from django.core.management import get_commands, load_command_class

    for name, app in get_commands().items():
        load_command_class(app, name)
    import_all("backend")
    import uvicorn

    from backend.celery import app as celery

    for name in ("celery.apps.beat", "celery.apps.worker", "celery.concurrency.prefork"):
        importlib.import_module(name)

    for module in celery.loader.import_default_modules():
        assert module
    assert celery.connection_for_read().transport.driver_name == "redis"  # imported by its address' scheme
    server = uvicorn.Config("backend.asgi:application", http="backend.api.limits.connections:BoundedHttp")
    server.load()
    server.get_loop_factory()


def engine() -> None:
    """Ray's nodes, drivers and actors; what runs in vLLM's own environment is imported there by its tests."""
    import_all(
        "engine",
        but=(
            "engine.inference.vllm",
            "engine.environments.sandbox.inside",
            "engine.live.texts.inside",  # runs in the sandbox, next to files of its own
            "engine.inference.rows.pages_kernel",
        ),
    )
    for name in ("scripts.scripts", "dashboard.dashboard", "dashboard.agent", "dashboard.modules.job.job_head"):
        importlib.import_module(f"ray.{name}")


def import_all(package: str, but: tuple[str, ...] = ()) -> None:
    for name in modules_of(importlib.import_module(package)):
        if not name.startswith(but) and not name.endswith("__main__"):
            importlib.import_module(name)


def modules_of(package: ModuleType) -> Iterator[str]:
    for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield each.name
        if each.ispkg:
            yield from modules_of(importlib.import_module(each.name))


IMAGES: dict[str, Callable[[], None]] = {"web": web, "engine": engine}

if __name__ == "__main__":
    image, *locks = sys.argv[1:]
    if locks:
        sys.meta_path[sys.meta_path.index(PathFinder)] = OfTheLocks(pinned_in(locks))
    IMAGES[image]()
