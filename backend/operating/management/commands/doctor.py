"""`manage.py doctor`: checks this site and suggests fixes. Exit code 1 if something is wrong.

doctor                               prints a line for every check
doctor --no-nodes                    starts no job on Ray
doctor --send-to ada@example.org     also sends a test mail
doctor --json                        for programs
"""

import json
from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from backend.operating.checks.doctor import NEAR, NODES, Part, examine
from backend.operating.checks.findings import Finding, Verdict

_SIGNS: Final = {Verdict.GOOD: "ok", Verdict.WARNING: "warning", Verdict.WRONG: "WRONG"}


class Command(BaseCommand):
    help = "Check this site and suggest fixes."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")
        parser.add_argument("--no-nodes", action="store_true", help="do not start the job that checks Ray's nodes")
        parser.add_argument("--send-to", default="", metavar="ADDRESS", help="send a test mail there")

    def handle(self, *args: Any, send_to: str, **options: Any) -> None:
        checks = NEAR if options["no_nodes"] else NEAR | NODES
        parts: list[Part] = []
        for part in examine(settings.ENVIRONMENT, checks, send_to=send_to):
            parts.append(part)
            if not options["json"]:
                self.stdout.write(_describe(part))
        counted = Counter(finding.verdict for part in parts for finding in part.findings)
        if options["json"]:
            findings = [{"part": part.title, **asdict(finding)} for part in parts for finding in part.findings]
            self.stdout.write(json.dumps({"wrong": counted[Verdict.WRONG], "findings": findings}))
        if counted[Verdict.WRONG]:
            raise CommandError(f"{counted[Verdict.WRONG]} of {counted.total()} are wrong")
        if not options["json"]:
            self.stdout.write(f"Nothing is wrong; {counted[Verdict.WARNING]} warnings.")


def _describe(part: Part) -> str:
    return "\n".join([part.title, *(line for finding in part.findings for line in _lines(finding))])


def _lines(finding: Finding) -> list[str]:
    name = f"  [{finding.fault}]" if finding.fault else ""
    line = f"  {_SIGNS[finding.verdict]:8} {finding.observation}{name}"
    return [line, f"           → {finding.cure}"] if finding.cure else [line]
