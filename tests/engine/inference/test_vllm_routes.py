"""vLLM's routes are converted to the form that the torch engine records and a trainer replays."""

from pathlib import Path

import torch

from engine.inference.vllm.live_sequence import Held, LiveSequence
from engine.inference.vllm.routes import NotedRoutes
from engine.models.loading import read_config
from engine.models.routes import RouteFormat
from tests.engine.inference.rollout_engine_builders import ask, make_model

PROMPT_TOKENS = 5


def live_sequence() -> LiveSequence:
    request = ask("sequence", range(4, 4 + PROMPT_TOKENS))
    return LiveSequence.from_request(request, 8, Held(version=0, salt=""), None)


def test_routes_of_vllms_tokens_add_up_to_all_tokens_read(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")  # the second of three layers is dense
    routes = NotedRoutes.of(tmp_path, is_noting=True)
    routes_PNk = torch.randint(0, 6, (PROMPT_TOKENS + 3, 3, 2), dtype=torch.uint8)
    first, second, dense = (live_sequence() for _ in range(3))
    first.new_routes.append(routes_PNk[:PROMPT_TOKENS].numpy())
    routes.pack_new([first])
    assert routes.num_known(first.routes) == PROMPT_TOKENS
    for at in range(PROMPT_TOKENS, len(routes_PNk)):
        first.new_routes.append(routes_PNk[at : at + 1].numpy())
    second.new_routes.append(routes_PNk[3:].numpy())
    routes.pack_new([first, dense, second])
    routes.pack_new([first, dense, second])
    layout = RouteFormat.of(read_config(tmp_path).mixture)
    assert torch.equal(layout.opened(first.end("stop").routes), routes_PNk[:, [0, 2]])
    assert torch.equal(layout.opened(second.end("stop").routes), routes_PNk[3:, [0, 2]])
    assert dense.end("stop").routes == b""


def test_no_routes_without_recording_or_for_a_dense_model(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")
    assert NotedRoutes.of(tmp_path, is_noting=False).token_bytes == 0
    assert NotedRoutes(None).num_known(b"") == 0
