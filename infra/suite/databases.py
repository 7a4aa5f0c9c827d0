"""`python -m infra.suite.databases NUM_WORKERS`: the test databases, migrated once and copied for each worker.

Migrations take 15 s of a core; a copy takes a tenth of a second. pytest finds the databases under the names that it
would give them (`--reuse-db`); the tests that run alone later use the original.
"""

import sys

import django
from django.db import connection


def main(num_workers: int) -> None:
    django.setup()
    name = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]  # of Postgres; a database in use cannot be copied
    with connection._nodb_cursor() as cursor:
        for number in range(num_workers):
            cursor.execute(f'CREATE DATABASE "{name}_gw{number}" TEMPLATE "{name}"')


if __name__ == "__main__":
    main(int(sys.argv[1]))
