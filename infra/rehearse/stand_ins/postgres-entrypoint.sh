#!/bin/bash
# First start: a cluster, the user's password, the database; then the server itself, as uid 999. Like the official image, whose
# temporary server of the first start listens on the socket alone. The client of the wheel looks for that socket in /tmp.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    install -d -o postgres -g postgres /var/run/postgresql
    exec setpriv --reuid 999 --regid 999 --clear-groups bash "$0" "$@"
fi
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086 # several options in one variable, as the official image takes them
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --pgdata="$PGDATA" ${POSTGRES_INITDB_ARGS:-}
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    sed -i "s|^#*unix_socket_directories.*|unix_socket_directories = '/var/run/postgresql,/tmp'|" "$PGDATA/postgresql.conf"
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    PGPASSWORD="$POSTGRES_PASSWORD" psql --host=/var/run/postgresql --username="$POSTGRES_USER" --dbname=postgres \
        --command="CREATE DATABASE \"${POSTGRES_DB:-$POSTGRES_USER}\""
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@"
