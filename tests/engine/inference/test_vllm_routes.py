"""Routes as vLLM tells them are routes as the torch engine notes them and a trainer chooses them again."""

from pathlib import Path

import torch

from engine.inference.vllm.routes import NotedRoutes
from engine.models.loading import read_config
from engine.models.routes import RouteFormat
from tests.engine.inference.rollout_engine_builders import make_model

PROMPT_TOKENS = 5


def test_what_is_told_with_each_token_adds_up_to_the_routes_of_all_that_were_read(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")  # the second of three layers is dense
    routes = NotedRoutes.of(tmp_path, is_noting=True)
    told_PNk = torch.randint(0, 6, (PROMPT_TOKENS + 3, 3, 2), dtype=torch.uint8)
    known = routes.packed(told_PNk[:PROMPT_TOKENS].numpy())
    assert routes.num_known(known) == PROMPT_TOKENS
    for at in range(PROMPT_TOKENS, len(told_PNk)):
        known += routes.packed(told_PNk[at : at + 1].numpy())
    opened = RouteFormat.of(read_config(tmp_path).mixture).opened(known)
    assert torch.equal(opened, told_PNk[:, [0, 2]])


def test_where_nobody_notes_them_and_of_a_dense_model_there_are_none(tmp_path: Path) -> None:
    make_model(tmp_path, layout="qwen3_moe")
    assert NotedRoutes.of(tmp_path, is_noting=False).token_bytes == 0
    assert NotedRoutes(None).num_known(b"") == 0
