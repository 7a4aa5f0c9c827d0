"""`manage.py verify_audit`: verifies the audit log. Exit code 1, with the first bad entry of each chain, on failure."""

import json
from dataclasses import asdict

from django.core.management.base import BaseCommand, CommandError, CommandParser

from backend.audit.anchoring import verify_audit_log
from backend.audit.anchors import BrokenAnchors


class Command(BaseCommand):
    help = "Verify every team's chain of audit entries, and the chains against their signed anchors."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the report as JSON")

    def handle(self, *args: object, **options: object) -> None:
        try:
            report = verify_audit_log()
        except BrokenAnchors as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report)))
        for finding in report.findings:
            self.stderr.write(f"team={finding.team_id} seq={finding.seq}: {finding.message}")
        if report.findings:
            raise CommandError(f"{len(report.findings)} of {report.num_chains} chains were changed")
        if not options["json"]:
            self.stdout.write(
                f"{report.num_entries} entries in {report.num_chains} chains are unchanged; "
                f"{report.num_anchored} of them are anchored"
            )
