"""Windows of vLLM's parameters: cut out of shards as vLLM makes them, they are parts of the published tensors.

Shards are made here by the definition of tensor parallelism, head by head; `tests/vllm` compares with vLLM's own.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.inference.vllm.windows import Window, expert_windows, stacked_windows
from engine.weights.parts import Rectangle, tile

HEAD, WIDTH = 4, 6
NAMES = ("q", "k", "v")


def assert_windows_are_parts(windows: Sequence[Window], parameter: Tensor, published: dict[str, Tensor]) -> None:
    for window in windows:
        values = window.cut(parameter)
        place = window.rectangle(values)
        whole_RC = published[window.name]
        whole_RC = whole_RC if whole_RC.dim() == 2 else whole_RC.unsqueeze(0)
        expected = whole_RC[place.row : place.row + place.num_rows, place.column : place.column + place.num_columns]
        assert torch.equal(values.reshape(expected.shape), expected)


def places_of(name: str, windows: Sequence[Window], parameters: Sequence[Tensor]) -> set[Rectangle]:
    pairs = zip(windows, parameters, strict=True)
    return {window.rectangle(window.cut(parameter)) for window, parameter in pairs if window.name == name}


@pytest.mark.parametrize("is_fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("shape", [(), (WIDTH,)], ids=["bias", "weight"])
@pytest.mark.parametrize(("heads", "kv_heads", "num_ranks"), [(8, 4, 1), (8, 4, 2), (8, 2, 4), (8, 1, 8)])
def test_stacked_heads_of_all_ranks_tile_each_tensor(
    heads: int, kv_heads: int, num_ranks: int, shape: tuple[int, ...], is_fused: bool
) -> None:
    tensors = {
        name: torch.randn(num * HEAD, *shape) for name, num in zip(NAMES, (heads, kv_heads, kv_heads), strict=True)
    }
    published = {"qkv": torch.cat(list(tensors.values()))} if is_fused else tensors
    replicas = max(1, num_ranks // kv_heads)
    sizes = [len(tensors["q"]), *[len(tensors[name]) * replicas for name in "kv"]]
    windows: list[Window] = []
    parameters: list[Tensor] = []
    for rank in range(num_ranks):
        own = {"q": range(rank * heads // num_ranks, (rank + 1) * heads // num_ranks)}
        kv = range(rank * kv_heads // num_ranks, max(1, kv_heads // num_ranks) + rank * kv_heads // num_ranks)
        own |= {"k": kv, "v": kv}
        rows = [tensors[name][head * HEAD : (head + 1) * HEAD] for name, numbers in own.items() for head in numbers]
        names = list(published)
        cut = list(stacked_windows(names, sizes, (1, replicas, replicas), rank=rank, num_ranks=num_ranks))
        assert_windows_are_parts(cut, torch.cat(rows), published)
        windows += cut
        parameters += [torch.cat(rows)] * len(cut)
    for name, tensor in published.items():
        assert tile(places_of(name, windows, parameters), tensor.shape)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("padding", [0, 2])
def test_experts_of_all_ranks_tile_each_matrix(num_ranks: int, padding: int) -> None:
    """`padding`: rows and columns that a kernel has added to every shard."""
    inner = 8
    published = {name: torch.randn(inner, WIDTH) for name in ("gate", "up")} | {"down": torch.randn(WIDTH, inner)}
    size = inner // num_ranks
    half = size + padding
    windows: list[Window] = []
    parameters: list[Tensor] = []
    for rank in range(num_ranks):
        own = slice(rank * size, (rank + 1) * size)
        w13, w2 = torch.zeros(2 * half, WIDTH + padding), torch.zeros(WIDTH, half)
        w13[:size, :WIDTH], w13[half : half + size, :WIDTH] = published["gate"][own], published["up"][own]
        w2[:, :size] = published["down"][:, own]
        of_w13, of_w2 = expert_windows(
            "gate", "up", "down", shape=(inner, WIDTH), half=half, rank=rank, num_ranks=num_ranks
        )
        assert_windows_are_parts(of_w13, w13, published)
        assert_windows_are_parts(of_w2, w2, published)
        windows += [*of_w13, *of_w2]
        parameters += [w13, w13, w2]
    for name, tensor in published.items():
        assert tile(places_of(name, windows, parameters), tensor.shape)


def test_window_leaves_out_the_padding_of_a_vocabulary() -> None:
    table = torch.randn(10, WIDTH)
    second = torch.cat([table[8:], torch.zeros(6, WIDTH)])
    window = Window("table", 8, 2)
    assert_windows_are_parts([window], second, {"table": table})
    assert window.rectangle(window.cut(second)) == Rectangle(8, 0, 2, WIDTH)
