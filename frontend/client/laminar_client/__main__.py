"""`laminar`, and `python -m laminar_client`."""

from .cli import (
    account,
    assets,
    capacity,
    completing,
    evaluating,
    exporting,
    jobs,
    models,
    people,
    replicas,
    streams,
    submitting,
    watching,
    webhooks,
)
from .cli.commands import laminar

# Importing a module registers its commands.
COMMANDS = (
    *(account, submitting, jobs, watching, streams, replicas),
    *(models, assets, evaluating, exporting, capacity, people, webhooks, completing),
)


def main() -> None:
    laminar.main(prog_name="laminar")


if __name__ == "__main__":
    main()
