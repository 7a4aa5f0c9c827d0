"""Backups of an installation: its database to any point in time, its files, its secrets apart.

    BACKUPS/wal/<era>/            what Postgres wrote since the first backup, by pg_receivewal
    BACKUPS/objects/ab/<sha256>   the content of files, each once
    BACKUPS/points/<id>/          a backup: base/, files.jsonl, and manifest.json, which is written last
    BACKUPS/secrets/<id>.json     apart, mode 600: best moved to where passwords are kept

errors      what a person has to see to
repository  the folders, and which backup is one
manifest    what a backup says of itself
source      the installation that is backed up or restored: of this machine, or of the environment
encrypted   TLS for Postgres' own tools
postgres    pg_basebackup, pg_receivewal, pg_verifybackup
files       folders and buckets, by name, size and sha256
taking      a backup, step by step
retention   what is kept
restoring   an installation as it was
recovering  a restored Postgres until it takes writes again
__main__    the commands
"""
