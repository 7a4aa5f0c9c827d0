"""Which points still stand: what an attempt did after the step that a later one goes on from is undone.

    attempt 1   1 ─────────── 40 ~~~~ undone ~~~~ 64
    attempt 2                 40 ── 41 ── 42 ▶            goes on after step 40

Invariants:
- a reader of a series sees it end where the run is, from the moment that the later attempt is made: not at steps
  that it has not done yet;
- nothing is deleted: the points stay for who asks for all of them, in the order in which they came.

What is in rollups is not cut before the later attempt's first point takes them back (rollups.py).
"""

from typing import Final

POINT_STANDS: Final = """step <= coalesce((
    SELECT array_agg(last_step ORDER BY n) FROM (
        SELECT n, min(resume_step) OVER (ORDER BY n ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS last_step
        FROM jobs_jobattempt WHERE job_id = %(job)s
    ) AS attempts
)[attempt], 9223372036854775807)"""
"""A condition on rows of telemetry_metricpoint, in a query that is given the job. Attempts are numbered from 1 without
a gap, so that a point finds its attempt in an array which is made once a query."""
