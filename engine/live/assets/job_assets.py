"""Resolves the assets that a job's spec names to paths on this node.

Invariants:
- every process resolves an asset here before reading it: the first on a node fetches it, the others use that copy;
- assets that an operator put into the shared folder are read there, if their size is still the registered one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.live.assets.fetching import Source
from engine.live.assets.node_cache import NodeCache
from engine.process.progress import report_progress, working
from engine.spec.assets.named_assets import with_references
from engine.spec.control import OrderedAsset, OrderedAssets
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAssets:
    ordered: OrderedAssets
    control_url: str
    store: Path
    """The shared folder."""
    cache: NodeCache

    def placed(self, spec: JobSpec, *, check: Callable[[], None] = report_progress) -> JobSpec:
        """Fetches all assets and returns the spec with paths for names. `check` may raise to end the fetch. Raises
        `ValueError`, `ConnectionError`, `AssetRefused`."""
        return with_references(spec, {each.pointer: str(self._path(each, check)) for each in self.ordered.assets})

    def ensure(self, kind: Literal["data", "model"]) -> None:
        """Fetches the assets of this kind to this node, to the same paths."""
        for each in self.ordered.assets:
            if each.kind == kind:
                self._path(each, report_progress)

    def _path(self, asset: OrderedAsset, check: Callable[[], None]) -> Path:
        if asset.place is not None:
            return self._in_shared_folder(asset, asset.place)

        def fill(folder: Path) -> None:
            source = Source(control_url=self.control_url.rstrip("/"), token=self.ordered.token)
            source.fill(folder, asset.id, source.manifest(asset.id, asset.sha256), report_progress=check)

        with working("fetch"):
            folder = self.cache.hold(asset.sha256, num_bytes=asset.num_bytes, fill=fill, waiting=check)
        return _path_within(asset, folder)

    def _in_shared_folder(self, asset: OrderedAsset, place: str) -> Path:
        home = self.store / ("models" if asset.kind == "model" else "data")
        path = home / place
        if path.resolve().parent != home.resolve() or not path.exists():
            raise ValueError(f"{asset.pointer[1:].replace('/', '.')}: {home.name}/{place} is missing on this node")
        files = [each for each in path.iterdir() if not each.name.startswith(".")] if path.is_dir() else [path]
        num_bytes = sum(each.stat().st_size for each in files)
        if num_bytes != asset.num_bytes:
            raise ValueError(
                f"{asset.pointer[1:].replace('/', '.')}: {home.name}/{place} has {num_bytes} bytes, but had "
                f"{asset.num_bytes} when it was registered; register it again, and use its new version"
            )
        return _path_within(asset, path)


def _path_within(asset: OrderedAsset, path: Path) -> Path:
    """A data set of one file is that file; any other asset is the folder."""
    within = sorted(path.iterdir()) if asset.kind == "data" and path.is_dir() else []
    return within[0] if len(within) == 1 else path
