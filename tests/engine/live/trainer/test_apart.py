"""Ranks on hosts without a shared folder: each keeps, uploads and fetches its own part of a checkpoint.

Here a host is a process with a LAMINAR_STORE_DIR of its own; the store is moto's server.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from engine.live.checkpoints.apart import address_of
from engine.live.checkpoints.resuming import finish_checkpoint, open_checkpoint
from engine.live.checkpoints.store import CheckpointStore, RemoteCheckpoints
from engine.pipeline.records import DataProgress
from engine.policy.lineage import WeightsId
from engine.spec.assets.store_address import StoreAddress
from engine.training.checkpoint.folder import (
    MANIFEST_FILE,
    CheckpointUnverified,
    read_manifest,
    verify_checkpoint,
)
from tests.engine.live.trainer.test_ranks import IN_TURN, TIMEOUT_S, make_trainer, trajectories_of
from tests.s3_server import CREDENTIALS, S3Server, s3_server

pytestmark = pytest.mark.ray

BUCKET = "laminar"
STEP = "jobs/job_a/attempt-1-fence-1/checkpoints/step-000001"
PROGRESS = DataProgress(ended=(), ledger=())

Environment = dict[str, str]


class FirstHost:
    """Rank 0's process."""

    def __init__(self, make: Callable[..., Any], root: Path, of_other: Environment, recorded: Path | None) -> None:
        from engine.live.process.devices import claim_device
        from engine.live.trainer.ranks import RankGroup

        options = {"num_cpus": 0.1, "runtime_env": {"env_vars": of_other}}
        self._folder = root / STEP
        folders: dict[str, Any] = {"checkpoints": self._folder.parent, "recorded": recorded}
        self._group = RankGroup(make, device=claim_device(), options=[options], timeout_s=TIMEOUT_S, **folders)

    def train(self, seed: int) -> dict[str, float]:
        return self._group.train_step(trajectories_of(seed)).metrics

    def weights(self) -> str:
        """A digest of rank 0's weights."""
        return sha256(self._group._own.snapshot(WeightsId(0, 1)).buffer).hexdigest()

    def save(self) -> str:
        """As `CheckpointWriter` does."""
        self._group.prepare_save(self._folder)()
        finish_checkpoint(self._folder, step=1, progress=PROGRESS)
        remote = RemoteCheckpoints.from_environment()
        assert remote is not None
        return remote.upload(self._folder)

    def record(self, folder: Path) -> None:
        """As `RecordedTrainer` does."""
        self._group.prepare_save(folder)()

    def load(self, uri: str = "") -> None:
        self._group.load(open_checkpoint(uri or str(self._folder)).folder)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as running:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        running.make_bucket(BUCKET)
        yield running


def host_of(name: str, root: Path, server: S3Server | None) -> Environment:
    environment = {"LAMINAR_STORE_DIR": str(root / name), "LAMINAR_STORE_URL": ""}
    if server is not None:
        environment |= {**CREDENTIALS, "LAMINAR_STORE_URL": f"s3://{BUCKET}/{root.name}"}
        environment["LAMINAR_STORE_ENDPOINT"] = server.endpoint
    return environment


def start(
    backend: str, root: Path, server: S3Server | None, *, other: str = "host-1", recorded: Path | None = None
) -> Any:
    import ray

    remote: Any = ray.remote(FirstHost)
    first = remote.options(num_cpus=0.1, runtime_env={"env_vars": host_of("host-0", root, server)})
    return first.remote(partial(make_trainer, backend), root / "host-0", host_of(other, root, server), recorded)


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*.safetensors")}


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize("backend", IN_TURN)
def test_each_rank_keeps_uploads_and_fetches_its_own_part(server: S3Server, tmp_path: Path, backend: str) -> None:
    import ray

    hosts = [tmp_path / f"host-{number}" / STEP for number in (0, 1)]
    group = start(backend, tmp_path, server)
    ray.get(group.train.remote(0))
    uri = ray.get(group.save.remote())
    for number, folder in enumerate(hosts, start=1):
        assert names_in(folder) == {f"{kind}-0000{number}-of-00002.safetensors" for kind in ("model", "state")}
    assert not (hosts[1] / MANIFEST_FILE).exists()
    expected = ray.get([group.weights.remote(), group.train.remote(1), group.weights.remote()])
    ray.kill(group)

    whole = RemoteCheckpoints(
        store=CheckpointStore(StoreAddress.read(f"s3://{BUCKET}/{tmp_path.name}", endpoint=server.endpoint)),
        root=tmp_path / "elsewhere",
    )
    opened = open_checkpoint(uri, whole).folder
    assert not names_in(opened), "opening a checkpoint fetches no weights"
    _, parts = read_manifest(opened)
    whole.store.fetch_parts(uri, parts, opened)
    assert verify_checkpoint(opened) and len(names_in(opened)) == 4, "the store has every part"

    shutil.rmtree(hosts[1])  # as if a new host replaced it
    again = start(backend, tmp_path, server)
    ray.get(again.load.remote())
    assert ray.get([again.weights.remote(), again.train.remote(1), again.weights.remote()]) == expected
    # The demo's weights are float32, so the model files are the master weights; each rank reads its rows of them.
    own = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "state-00002-of-00002.safetensors"}
    assert names_in(hosts[1]) == own
    if backend == "torch":
        assert "state-00002-of-00002.safetensors" not in names_in(hosts[0])
    verify_checkpoint(hosts[0])
    ray.kill(again)

    # With no local files, each rank fetches its parts; a damaged copy is deleted on its host only.
    for number in (0, 1):
        shutil.rmtree(tmp_path / f"host-{number}" / "jobs")
    third = start(backend, tmp_path, server)
    ray.get(third.load.remote(uri))
    assert ray.get([third.weights.remote(), third.train.remote(1), third.weights.remote()]) == expected
    (copy,) = (tmp_path / "host-1" / "fetched").iterdir()
    assert names_in(copy) == own
    file = copy / "state-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointUnverified, match=r"rank 1: .*state-00002-of-00002"):
        ray.get(third.load.remote(uri))
    assert not copy.exists()
    ray.get(third.load.remote(uri))
    assert ray.get([third.weights.remote(), third.train.remote(1), third.weights.remote()]) == expected
    ray.kill(third)


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
def test_ranks_apart_without_a_store_are_refused_at_start(tmp_path: Path) -> None:
    import ray

    group = start("torch", tmp_path, None)
    with pytest.raises(ray.exceptions.RayActorError, match=r"LAMINAR_STORE_DIR: rank 1 .*LAMINAR_STORE_URL"):
        ray.get(group.train.remote(0))
    shared = start("torch", tmp_path, None, other="host-0")
    assert ray.get(shared.train.remote(0))["train/skipped"] == 0.0
    ray.kill(shared)


@pytest.mark.long
@pytest.mark.usefixtures("own_ray")
def test_step_needs_a_recordings_folder_that_all_ranks_see(server: S3Server, tmp_path: Path) -> None:
    import ray

    recorded = tmp_path / "host-0" / "recordings" / "step-000001"
    apart = start("torch", tmp_path, server, recorded=recorded)
    with pytest.raises(ray.exceptions.RayActorError, match=r"--record-step: .*rank 1 .*cannot see"):
        ray.get(apart.train.remote(0))
    shared = start("torch", tmp_path, server, other="host-0", recorded=recorded)
    ray.get(shared.record.remote(recorded / "begin"))
    ray.get(shared.record.remote(tmp_path / "outside" / "end"))  # outside LAMINAR_STORE_DIR
    verify_checkpoint(recorded / "begin")
    verify_checkpoint(tmp_path / "outside" / "end")
    uri = ray.get(shared.save.remote())
    keys = server.keys_in(BUCKET, tmp_path.name)
    assert keys and all(f"{tmp_path.name}/{STEP}/" in key for key in keys) and uri.endswith(STEP)
    ray.kill(shared)


@pytest.mark.long
def test_folder_without_an_address_for_other_hosts_is_refused(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in host_of("host-0", tmp_path, server).items():
        monkeypatch.setenv(name, value)
    assert address_of(tmp_path / "host-0" / STEP) == f"s3://{BUCKET}/{tmp_path.name}/{STEP}"
    with pytest.raises(ValueError, match=r"resume_from: .* is outside of LAMINAR_STORE_DIR"):
        address_of(tmp_path / "elsewhere")
