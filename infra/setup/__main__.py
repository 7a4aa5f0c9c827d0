"""`python -m infra.setup [--dev | --vllm [cpu | cuda]]`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from infra.setup.diagnoses import meaning_of
from infra.setup.environment import set_up
from infra.setup.hook import install_hook
from infra.setup.machine import check_python, lock_of_vllm
from infra.setup.paths import ROOT, Paths
from infra.setup.terminal import Refusal, say


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="create .laminar/venv or .laminar/vllm from the hash-pinned locks")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dev", action="store_true", help="with the tools of `make test` and `make lint`")
    which.add_argument(
        "--vllm", nargs="?", const="", metavar="BUILD", help=".laminar/vllm instead of .laminar/venv: cpu or cuda"
    )
    chosen = parser.parse_args(arguments)
    try:
        check_python(sys.version_info[:3])
        if chosen.vllm is not None:
            set_up(Paths(ROOT, "vllm"), lock_of_vllm(chosen.vllm))
        else:
            set_up(Paths(ROOT), "dev" if chosen.dev else "local")
            if chosen.dev:
                install_hook(ROOT)
    except Refusal as refusal:
        say(f"laminar set-up: {refusal}")
        if chosen.vllm is not None:
            say("  To leave vLLM and its tests out: make test VLLM=0")
        return 1
    except OSError as error:
        say(f"laminar set-up: {error.strerror}: {error.filename}. {meaning_of(str(error))}")
        return 1
    except KeyboardInterrupt:
        say("\nlaminar set-up: interrupted. Run the command again: it starts anew and reuses completed downloads.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
