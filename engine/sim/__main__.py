"""`python -m engine.sim --seed N --schedule laminar`: one simulated run, the same every time."""

import argparse
import sys

from engine.sim.checks import InvariantBroken
from engine.sim.faults import Faults
from engine.sim.scenario import plan_of, replay_command, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--schedule", choices=("laminar", "sync"), default="laminar")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if arguments.count == 1:
            print(f"plan    {plan_of(seed, arguments.schedule)}\nfaults  {Faults.drawn(seed)}")
        try:
            outcome = simulate(seed, arguments.schedule)
        except InvariantBroken as broken:
            print(f"BROKEN  {broken}\nreplay  {replay_command(seed, arguments.schedule)}")
            return 1
        staleness = outcome.oracle.staleness
        mean = sum(staleness) / len(staleness) if staleness else 0.0
        print(
            f"seed {seed}: {outcome.oracle.trained_steps} steps in {outcome.virtual_s:.1f} virtual s, "
            f"{outcome.num_events} events, staleness mean {mean:.2f} max {max(staleness, default=0)}, "
            f"ledger {outcome.oracle.ledger}" + (f", broken: {outcome.broken.message}" if outcome.broken else "")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
