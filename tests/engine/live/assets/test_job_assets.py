"""A spec's assets on a node that mounts the shared folder: read in place, if they have their registered size."""

from pathlib import Path

import pytest

from engine.live.assets.job_assets import JobAssets
from engine.live.assets.node_cache import NodeCache
from engine.spec.control import OrderedAsset, OrderedAssets
from engine.spec.job import JobSpec

ROWS = b'{"prompt": "1", "answer": "2"}\n'
SPEC = JobSpec.model_validate(
    {"name": "x", "model": {"source": "tiny@1"}, "environment": {"name": "jsonl", "params": {"data": "sums@2"}}}
)


def assets(store: Path, **places: str) -> JobAssets:
    pointers = {"data": "/environment/params/data", "model": "/model/source"}
    ordered = [
        OrderedAsset(
            pointer=pointers[kind], id="asset_x", kind="data" if kind == "data" else "model", sha256="a" * 64,
            num_bytes=len(ROWS), place=place,
        )
        for kind, place in places.items()
    ]  # fmt: skip
    cache = NodeCache(root=store / "cache")
    return JobAssets(
        ordered=OrderedAssets(token="t", assets=ordered), control_url="http://127.0.0.1:1", store=store, cache=cache
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sums.jsonl").write_bytes(ROWS)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_bytes(ROWS)
    return tmp_path


def test_assets_in_the_shared_folder_are_read_in_place(store: Path) -> None:
    placed = assets(store, data="sums.jsonl", model="tiny").placed(SPEC)
    assert placed.environment.params["data"] == str(store / "data" / "sums.jsonl")
    assert placed.model.source == str(store / "models" / "tiny")
    assert placed.training == SPEC.training and not (store / "cache").exists()


@pytest.mark.parametrize("place", ["../secret", "link", "nothing", "sums.jsonl/../../secret"])
def test_place_outside_the_shared_folder_is_refused(store: Path, place: str) -> None:
    (store / "secret").write_bytes(ROWS)
    (store / "data" / "link").symlink_to(store / "secret")
    with pytest.raises(ValueError, match=r"environment\.params\.data: data/.* is missing") as refusal:
        assets(store, data=place).placed(SPEC)
    assert str(store) not in str(refusal.value), "the error shows a path of the site"


def test_asset_changed_since_registration_is_refused(store: Path) -> None:
    (store / "data" / "sums.jsonl").write_bytes(ROWS * 2)
    with pytest.raises(ValueError, match="had 31 when it was registered; register it again"):
        assets(store, data="sums.jsonl").placed(SPEC)
