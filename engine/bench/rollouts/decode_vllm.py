"""The part of the decode bench that runs in vLLM's environment: a line with a batch size in, tokens per second out."""

import json
import sys
from pathlib import Path

from engine.bench.rollouts.decode import timed_engine


def main() -> None:
    from engine.inference.vllm.engine import VllmRolloutEngine

    folder, max_batch, new_tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    engine = VllmRolloutEngine(folder, max_batch=max_batch, device="cpu")
    for line in sys.stdin:
        tokens_per_s = timed_engine(engine, int(line), new_tokens)
        sys.stdout.write(json.dumps({"tokens_per_s": tokens_per_s}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
