"""`python -m engine.sim --seed N --schedule laminar`: one simulated run, the same every time."""

import argparse
import sys

from engine.sim.oracle.pipeline import InvariantBroken
from engine.sim.scenario import SCHEDULES, evaluation_of, replay_command, resumed_of, world_of
from engine.sim.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="number of consecutive seeds")
    parser.add_argument("--schedule", choices=SCHEDULES, default="laminar")
    parser.add_argument("--evaluation", action="store_true", help="a job that only evaluates")
    parser.add_argument("--resumed", action="store_true", help="a later attempt, which also evaluates version 0")
    parser.add_argument("--from-another-job", action="store_true", help="it starts from another job's checkpoint")
    parser.add_argument("--age-cap", action="store_true", help="laminar with several slots and an age cap")
    parser.add_argument("--trace", action="store_true", help="print every effect")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        world = _world(seed, arguments)
        if arguments.count == 1:
            print(f"plan    {world.plan}\nfaults  {world.faults}")
        world.trace = [] if arguments.trace else None
        try:
            outcome = world.run()
        except InvariantBroken as broken:
            print("\n".join(world.trace or ()))
            command = replay_command(
                seed,
                arguments.schedule,
                evaluates=arguments.evaluation,
                is_capped=arguments.age_cap,
                is_resumed=arguments.resumed,
                is_of_another_job=arguments.from_another_job,
            )
            print(f"BROKEN  {broken}\nreplay  {command}")
            return 1
        print("\n".join(world.trace or ()))
        oracle = outcome.oracle
        staleness = oracle.staleness or [0]
        print(
            f"seed {seed}: {outcome.end} after {oracle.trained_steps} steps in {outcome.virtual_s:.1f} virtual s, "
            f"{outcome.num_events} events, staleness mean {sum(staleness) / len(staleness):.2f} max {max(staleness)}, "
            f"{oracle.num_moved} moved, ledger {oracle.ledger}"
        )
    return 0


def _world(seed: int, arguments: argparse.Namespace) -> World:
    if arguments.evaluation:
        return evaluation_of(seed, arguments.schedule)
    if arguments.resumed or arguments.from_another_job:
        return resumed_of(seed, arguments.schedule, is_of_another_job=arguments.from_another_job)
    return world_of(seed, arguments.schedule, is_capped=arguments.age_cap)


if __name__ == "__main__":
    sys.exit(main())
