"""Submit a small job, follow it, and print its reward. Needs LAMINAR_URL and LAMINAR_API_KEY in the environment."""

import os
import sys

from laminar_client import ApiError, Laminar

with Laminar() as client:
    project = client.team.projects()[0]
    try:
        job = client.jobs.submit(
            {"name": "From Python", "training": {"steps": 3}},
            project=project.id,
            idempotency_key=os.environ.get("NAME_OF_THIS_RUN"),  # of a nightly run its date: submitted once
        )
    except ApiError as refused:  # every place that is wrong, at once
        sys.exit(f"{refused.detail} {[(each.pointer, each.message) for each in refused.errors]}")
    for look in client.jobs.watch(job.id):
        print(look.job.state, look.job.step, look.latest.get("reward/mean"))
    sys.exit(look.job.state != "succeeded")
