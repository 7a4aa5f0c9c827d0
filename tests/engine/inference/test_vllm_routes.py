"""vLLM's routes are converted to the form that the torch engine records and a trainer replays."""

from pathlib import Path

import torch

from engine.inference.vllm.routes import NotedRoutes
from engine.models.loading import read_config
from engine.models.routes import RouteFormat
from tests.engine.inference.rollout_engine_builders import make_model

PROMPT_TOKENS = 5


def test_routes_of_vllms_tokens_add_up_to_all_tokens_read(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")  # the second of three layers is dense
    routes = NotedRoutes.of(tmp_path, is_noting=True)
    routes_PNk = torch.randint(0, 6, (PROMPT_TOKENS + 3, 3, 2), dtype=torch.uint8)
    known = routes.packed(routes_PNk[:PROMPT_TOKENS].numpy())
    assert routes.num_known(known) == PROMPT_TOKENS
    for at in range(PROMPT_TOKENS, len(routes_PNk)):
        known += routes.packed(routes_PNk[at : at + 1].numpy())
    opened = RouteFormat.of(read_config(tmp_path).mixture).opened(known)
    assert torch.equal(opened, routes_PNk[:, [0, 2]])


def test_no_routes_without_recording_or_for_a_dense_model(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")
    assert NotedRoutes.of(tmp_path, is_noting=False).token_bytes == 0
    assert NotedRoutes(None).num_known(b"") == 0
