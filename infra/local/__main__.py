"""`python -m infra.local up | down | status | logs | demo`; the Makefile calls it."""

import argparse
import sys
from pathlib import Path

from infra.local.errors import LocalError
from infra.local.home import Home, default_home
from infra.local.interruption import end_as_if_by_keyboard
from infra.local.site_commands import down, print_addresses, print_status, show_logs, up


def main() -> int:
    options = _parser().parse_args()
    home = Home(Path(options.home).absolute()) if options.home else default_home()
    if options.command in {"up", "demo"}:
        end_as_if_by_keyboard()
    try:
        return _run(options, home)
    except KeyboardInterrupt:
        return 130
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        hint = " Free some space and try again." if error.errno == 28 else ""
        print(f"error: {error.strerror}: {error.filename or home.folder}.{hint}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, home: Home) -> int:
    match options.command:
        case "up":
            up(home, options.services)
            print_addresses(home)
        case "down":
            down(home)
        case "status":
            return 0 if print_status(home) else 1
        case "logs":
            show_logs(home, options.services, follow=options.follow)
        case "supervise":
            from infra.local.supervisor import Supervisor

            Supervisor(home, options.services).run()
        case "demo":
            from infra.local.demo import run_demo

            up(home)
            return run_demo(home, seed=options.seed, schedule=options.schedule, steps=options.steps)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local", description="Run Laminar on this machine.")
    parser.add_argument("--home", help="folder for data, logs and secrets (.laminar)")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("up", "start all services"),
        ("supervise", "run in the foreground what `up` starts in the background"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("services", nargs="*", help="only these services")
    for name, help_text in (("down", "stop all services"), ("status", "show the state of each service")):
        commands.add_parser(name, help=help_text)
    logs = commands.add_parser("logs", help="show the newest log lines")
    logs.add_argument("services", nargs="*", help="only these services")
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing new lines")
    demo = commands.add_parser("demo", help="start all services and train the demo model")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--schedule", choices=["laminar", "sync"], default="laminar")
    demo.add_argument("--steps", type=int, help="number of steps (the template's)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
