"""Feeds of events, log lines and the audit log for programs."""
