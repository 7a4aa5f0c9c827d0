"""Jobs: from a spec to the one end that each of them has.

models            jobs, attempts, events
lifecycle         the only writer of a job's state
selectors         jobs as somebody may see them
outbox            what must happen after a transaction
nudge             wakes a worker for fresh outbox rows, without waiting
row_batch         several rows in one trip to the database
control_requests  what is asked of a running attempt, until it is acknowledged
background        safety nets that tick
admin             a read-only page for operators

submitting/       from a spec to a waiting job
line/             who starts next, and why somebody waits
attempts/         one execution, from beginning to end
control/          pausing, cancelling, changing
rest/             REST over all of it
"""
