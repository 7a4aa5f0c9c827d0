"""The part of the decode bench that runs in vLLM's environment: a batch size in, tokens per second out."""

import sys
from pathlib import Path

from tests.bench.engine.rollouts.decode import timed_engine
from tests.bench.engine.rollouts.in_vllm import answer_lines


def main() -> None:
    from engine.inference.vllm.engine import VllmRolloutEngine

    folder, max_batch, new_tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    engine = VllmRolloutEngine(folder, max_batch=max_batch, device="cpu")
    answer_lines(lambda asked: {"tokens_per_s": timed_engine(engine, asked["batch"], new_tokens)})


if __name__ == "__main__":
    main()
