"""A mixture's sample that moves, or resumes after its replica was killed, ends with the routes of one that stayed."""

import shutil
from pathlib import Path

import pytest

from engine.environments.tool_sums import ToolSums
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import DEMO_FOLDER, load_decoder, model_tensors, read_config
from engine.models.routes import RouteFormat
from engine.pipeline.data.accounts import Account
from engine.pipeline.effects import HandOverSequences, ReportProgress, StartSequences
from engine.pipeline.messages.to_rollout import ProgressReported
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


def test_sample_of_a_killed_replica_keeps_its_routes(folder: Path) -> None:
    """Data's accounts get each byte of the routes once."""
    lost, heir = MixtureReplica(folder), MixtureReplica(folder, number=1)
    lost.start()
    accounts: dict[SampleKey, Account] = {}
    acknowledged = {key: AcknowledgedProgress(key=key, sample_run=1) for key in KEYS}
    num_bytes = 0
    for _ in range(6):
        lost.steps(5)
        lost.answer()
        [report] = lost.body.perform(ReportProgress(acknowledged=tuple(acknowledged.values())))
        assert isinstance(report, ProgressReported)
        for each in report.progress:
            num_bytes += len(each.packed_routes)
            if each.since:
                accounts[each.key].take(each)
            else:
                accounts[each.key] = Account(each, reporter=(0, 0))
            acknowledged[each.key] = AcknowledgedProgress(
                key=each.key,
                sample_run=1,
                num_tokens=each.num_tokens,
                num_route_bytes=each.num_route_bytes,
                mark=each.mark,
            )
    assert num_bytes == sum(account.num_route_bytes for account in accounts.values()) > 0
    lost.steps(2)  # these steps are never reported
    left = tuple(account.progress(key) for key, account in accounts.items() if key not in lost.ended)
    assert left
    samples = tuple(each.key.sample for each in left)
    heir.body.perform(StartSequences(tasks=(GroupTask(key=GROUP, samples=samples, lease=2, progress=left),)))
    heir.finish()
    assert_same_routes(lost.ended | heir.ended, folder)
