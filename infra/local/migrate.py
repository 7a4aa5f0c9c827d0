"""`python -m infra.local.migrate PASSWORD_FILE API_KEY_FILE`: schema and demo tenant; prints the tenant as JSON.

One process for both, without Django's system checks, which import every route: the tests run those.
"""

import gc
import sys
from collections.abc import Sequence

import django
from django.core.management import call_command


def main(arguments: Sequence[str]) -> None:
    password_file, api_key_file = arguments
    gc.set_threshold(50_000, 20, 50)  # Django renders the models for each operation: a fifth of it was collections
    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    call_command("ensure_demo", "--password-file", password_file, "--api-key-file", api_key_file)


if __name__ == "__main__":
    main(sys.argv[1:])
