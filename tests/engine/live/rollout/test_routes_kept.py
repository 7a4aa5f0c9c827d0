"""A mixture's sample that moves, or resumes after its replica was killed, ends with the routes of one that stayed."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from engine.environments.tools.tool_sums import ToolSums
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import DEMO_FOLDER, load_decoder, model_tensors, read_config
from engine.models.routes import RouteFormat
from engine.pipeline.data.accounts import Account
from engine.pipeline.effects import HandOverSequences, ReportProgress, StartSequences
from engine.pipeline.messages.to_rollout import ProgressReported
from engine.pipeline.packed import Bytes
from engine.pipeline.records import AcknowledgedProgress, GroupTask, SampleKey, Trajectory
from engine.policy.lineage import WeightsId
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights
from tests.engine.live.rollout.test_body import GROUP, HELD, SAMPLES, TASK, V0, Replica
from tests.engine.models.test_mixture import save_mixture

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS = [SampleKey(group=GROUP, sample=sample) for sample in SAMPLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    save_mixture(folder, vocab_size=131, eos_token_id=2, max_position_embeddings=256)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_FOLDER / name, folder)
    return folder


class MixtureReplica(Replica):
    """Samples of two turns, with a tool's answer between them."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        super().__init__("tool_sums", number, max_new_tokens=60)
        self.environment = ToolSums(seed=0, turns=2, waits="none")

    def _make_engine(self) -> TorchRolloutEngine:
        return TorchRolloutEngine(self.folder, max_batch=8, device="cpu")

    def weights_of(self, version: int) -> WeightVersion:
        return pack_weights(model_tensors(load_decoder(self.folder, device="cpu")), weights=WeightsId(0, version))

    def start(self) -> None:
        self.body.perform(StartSequences(tasks=(TASK,)))
        self.answer()


def stayed(folder: Path) -> dict[SampleKey, Trajectory]:
    replica = MixtureReplica(folder)
    replica.start()
    replica.finish()
    return replica.ended


def assert_same_routes(ended: dict[SampleKey, Trajectory], folder: Path) -> None:
    layout, has_later_turn = RouteFormat.of(read_config(folder).mixture), False
    for key, trajectory in stayed(folder).items():
        content, expected = ended[key].content, trajectory.content
        assert content is not None and expected is not None
        assert content.response_ids == expected.response_ids
        num_read = len(expected.prompt_ids) + len(expected.response_ids) - 1
        assert len(expected.routes) == num_read * layout.token_bytes and not expected.breaks
        assert content.routes == expected.routes
        assert (layout.opened(content.routes.data)[:, 0, 0] != layout.unknown).all()
        has_later_turn |= bool(content.written)
    assert has_later_turn


@pytest.mark.parametrize("num_steps", [1, 9, 30])
def test_moved_sample_keeps_its_routes(folder: Path, num_steps: int) -> None:
    source, host = MixtureReplica(folder), MixtureReplica(folder, number=1)
    source.start()
    for _ in range(num_steps):
        source.steps(1)
        source.answer()
    ended = dict(source.ended)
    source.body.perform(HandOverSequences(group=HELD, host=1, host_incarnation=0, weights=V0))
    host.take_over(source.handed[0])
    host.finish()
    assert_same_routes(ended | host.ended, folder)


class Reported:
    """Data's accounts of a replica's samples."""

    def __init__(self) -> None:
        self.accounts: dict[SampleKey, Account] = {}
        self.acknowledged = {key: AcknowledgedProgress(key=key, sample_run=1) for key in KEYS}
        self.num_bytes = 0

    def report(self, replica: MixtureReplica) -> None:
        running = tuple(each for key, each in self.acknowledged.items() if key not in replica.ended)
        [report] = replica.body.perform(ReportProgress(acknowledged=running))
        assert isinstance(report, ProgressReported)
        for each in report.progress:
            self.num_bytes += len(each.packed_routes)
            if each.since:
                self.accounts[each.key].take(each)
            else:
                self.accounts[each.key] = Account(each, reporter=(0, 0))
            self.acknowledged[each.key] = AcknowledgedProgress(
                key=each.key,
                sample_run=1,
                num_tokens=each.num_tokens,
                num_route_bytes=each.num_route_bytes,
                mark=each.mark,
            )


def test_sample_of_a_killed_replica_keeps_its_routes(folder: Path) -> None:
    lost, heir, data = MixtureReplica(folder), MixtureReplica(folder, number=1), Reported()
    lost.start()
    for _ in range(6):
        lost.steps(5)
        lost.answer()
        data.report(lost)
    lost.steps(2)  # these steps are never reported
    assert not lost.ended
    left = tuple(account.progress(key) for key, account in data.accounts.items())
    heir.body.perform(StartSequences(tasks=(GroupTask(key=GROUP, samples=SAMPLES, lease=2, progress=left),)))
    heir.finish()
    assert_same_routes(heir.ended, folder)


def test_each_byte_of_a_samples_routes_is_sent_once(folder: Path) -> None:
    """In reports until data acknowledges it, the rest with the trajectory."""
    replica, data = MixtureReplica(folder), Reported()
    replica.start()
    while len(replica.ended) < len(SAMPLES):
        replica.steps(4)
        replica.answer()
        data.report(replica)
    joined: dict[SampleKey, Trajectory] = {}
    num_bytes, num_again = data.num_bytes, 0
    for key, trajectory in replica.ended.items():
        content, account = trajectory.content, data.accounts[key]
        assert content is not None and content.sample_run == 1
        assert account.has_routes(content.routes_since, reporter=(0, 0), sample_run=1)
        num_bytes += len(content.routes)
        num_again += account.num_route_bytes - content.routes_since
        routes = Bytes(bytes(account.packed_routes[: content.routes_since]) + content.routes.data)
        joined[key] = replace(trajectory, content=replace(content, routes=routes))
    assert_same_routes(joined, folder)
    whole = sum(len(its.content.routes) for its in joined.values() if its.content is not None)
    assert num_bytes == whole + num_again
    assert num_again * 5 < whole, "only what the last report brought, which was not acknowledged yet"
