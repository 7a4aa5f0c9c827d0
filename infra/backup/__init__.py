"""Backups of an installation: its database to any point in time, its files, its secrets apart.

BACKUPS/wal/<era>/            what Postgres wrote since the first backup, by pg_receivewal
BACKUPS/objects/ab/<sha256>   the content of files, each once
BACKUPS/points/<id>/          a backup: base/, files.jsonl, and manifest.json, which is written last
BACKUPS/secrets/<id>.json     apart, mode 600: best moved to where passwords are kept
"""
