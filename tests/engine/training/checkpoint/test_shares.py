"""Values stored by ranks with one sharding are read by ranks with any other."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.loading import hugging_face_views, read_config, weight_files
from engine.process.progress import LoopProgress
from engine.training.checkpoint import stored_state
from engine.training.checkpoint.shares import Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.checkpoint.tensor_file import BLOCK_BYTES, Entry, write_named, write_tensors
from engine.training.parts.layout import Place, decoder_places
from tests.engine.conftest import MakeLlama
from tests.engine.training.parts.test_layout import configs

NUMEL = st.integers(0, 200)


def cut(place: Place, values: Tensor, cuts: list[int]) -> list[Share]:
    """The shares of len(cuts) + 1 ranks, some of which may be empty."""
    total = place.shape.numel()
    ends = sorted(min(each, total) for each in cuts)
    spans = [range(*ends_of) for ends_of in zip([0, *ends], [*ends, total], strict=True)]
    return [Share(place, span, values.view(-1)[span.start : span.stop]) for span in spans]


@examples(max_examples=30)
@given(config=configs(), stored_cuts=st.lists(NUMEL, max_size=3), read_cuts=st.lists(NUMEL, max_size=3))
def test_any_sharding_reads_what_any_other_stored(
    config: DecoderConfig, stored_cuts: list[int], read_cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("state")
    parameters = dict(Decoder(config, torch.float32).named_parameters())
    own = {name: torch.randn_like(parameter) for name, parameter in parameters.items()}
    places = decoder_places(config, parameters)
    files: list[dict[str, Tensor]] = [{} for _ in range(len(stored_cuts) + 1)]
    for name, place in places.items():
        for file, share in zip(files, cut(place, own[name], stored_cuts), strict=True):
            for piece in share.pieces:
                part = share.values[piece.first : piece.first + len(piece.span)]
                file[piece.stored_name] = part.clone().view(piece.stored_shape)
    for rank, tensors in enumerate(files):
        write_named(folder / f"{rank}.safetensors", tensors)
    if not stored_cuts:  # one process stores only Hugging Face names and shapes
        assert {name: tensor.shape for name, tensor in files[0].items()} == {
            name: view.shape for name, view in hugging_face_views(config, own).items()
        }
    with StoredState(folder.glob("*.safetensors")) as stored:
        for name, place in places.items():
            read = torch.full((place.shape.numel(),), torch.nan)
            for share in cut(place, read, read_cuts):
                stored.fill(share, under="")
            assert torch.equal(read.view(place.shape), own[name])


def test_rank_reads_its_rows_of_a_fused_matrix(make_llama: MakeLlama) -> None:
    folder = make_llama(dtype="bfloat16")
    config = read_config(folder)
    place = decoder_places(config, dict(Decoder(config, torch.float32).named_parameters()))["layers.1.qkv_QD"]
    read = torch.empty(place.shape)
    with StoredState(weight_files(folder)) as stored:
        for share in cut(place, read, [22 * config.width, 44 * config.width]):
            stored.fill(share, under="")
        whole = stored.tensors("model.layers.1.self_attn.")
    names = [f"model.layers.1.self_attn.{kind}_proj.weight" for kind in "qkv"]
    assert torch.equal(read, torch.cat([whole[name] for name in names]).float())


def place_of(*shape: int) -> Place:
    return Place(torch.Size(shape), (("w", torch.Size(shape), 0),))


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ({"w[0:5/12]": (5,)}, r"no file has the values 5 to 12 of w"),
        ({"other": (12,)}, r"no file has the values 0 to 12 of w"),
        ({"w[0:5/10]": (5,), "w[5:10/10]": (5,)}, r"w\[0:5/10\] has 10 values, config.json requires \(3, 4\)"),
        ({"w": (4, 3)}, r"w has 12 values, config.json requires \(3, 4\)"),
    ],
)
def test_missing_or_misshapen_values_are_named(tmp_path: Path, stored: dict[str, tuple[int, ...]], named: str) -> None:
    save_file({name: torch.zeros(shape) for name, shape in stored.items()}, tmp_path / "state.safetensors")
    share = Share.whole(place_of(3, 4), torch.empty(12))
    with StoredState([tmp_path / "state.safetensors"]) as state, pytest.raises(ValueError, match=named):
        state.fill(share, under="")


def test_large_tensors_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_state, "_BLOCK_NUMEL", 5)
    values = torch.randn(7, 9)
    save_file({"m/w": values}, tmp_path / "state.safetensors")
    target = torch.empty(41)
    with StoredState([tmp_path / "state.safetensors"]) as state:
        state.fill(Share(place_of(7, 9), range(11, 52), target), under="m/")
    assert torch.equal(target, values.view(-1)[11:52])


@examples(max_examples=20)
@given(
    shapes=st.dictionaries(
        st.text("abc.[]:/", min_size=1), st.tuples(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 3))
    )
)
def test_streamed_file_is_valid_safetensors_with_its_hash(
    shapes: dict[str, tuple[list[int], int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also if a file mixes numbers of one, two, four and eight bytes."""
    dtypes = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
    tensors = {name: torch.randn(shape).abs().to(dtypes[which]) for name, (shape, which) in shapes.items()}
    file = tmp_path_factory.mktemp("file") / "all.safetensors"
    part = write_named(file, tensors)
    loaded = load_file(file)
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    assert part.num_bytes == file.stat().st_size


class CountedSigns(LoopProgress):
    num_pieces = 0

    def begin(self, what: str, *, constant_s: float = 0.0, is_opaque: bool = False) -> None:
        super().begin(what, constant_s=constant_s, is_opaque=is_opaque)
        self.num_pieces += 1


def test_every_written_block_reports_progress(tmp_path: Path) -> None:
    tensor, progress = torch.zeros(3 * BLOCK_BYTES // 4 + 5), CountedSigns()
    with progress.attached():
        write_tensors(tmp_path / "large", [Entry("w", tensor.dtype, tuple(tensor.shape))], [tensor])
    assert progress.num_pieces >= 4
