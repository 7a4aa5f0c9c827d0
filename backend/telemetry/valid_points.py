"""Which points are valid: an attempt's steps after the one that a later attempt resumes from are rolled back.

    attempt 1   1 ─────────── 40 ~~ rolled back ~~ 64
    attempt 2                 40 ── 41 ── 42 ▶            resumes after step 40

Invariants:
- a reader sees a series end where the run is, from the moment that the later attempt is created: not at steps that it
  has not trained yet;
- nothing is deleted: all points remain available, in the order of their arrival.

Rollups are not cut until the later attempt's first point takes them back (rollups.py).
"""

from typing import Final

POINT_IS_VALID: Final = """step <= coalesce((
    SELECT array_agg(last_step ORDER BY n) FROM (
        SELECT n, min(resume_step) OVER (ORDER BY n ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS last_step
        FROM jobs_jobattempt WHERE job_id = %(job)s
    ) AS attempts
)[attempt], 9223372036854775807)"""
"""A condition on rows of telemetry_metricpoint, in a query with the job as parameter. Attempts are numbered from 1
without gaps, so a point finds its attempt in an array that is built once per query."""
