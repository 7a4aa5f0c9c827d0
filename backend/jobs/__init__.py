"""Jobs: from a spec to the one end that each of them has.

models            jobs, attempts, events
lifecycle         the only writer of a job's state
selectors         jobs as somebody may see them
outbox            acts that must follow a transaction
nudge             a call that wakes a worker for fresh outbox rows, without waiting
row_batch         several rows in one trip to the database
control_requests  requests to a running attempt, until it acknowledges them
background        safety nets that tick
admin             a read-only page for operators

submitting/       from a spec to a waiting job
line/             the order in which jobs start, and the reasons why they wait
attempts/         one execution, from beginning to end
generation/       putting back in time, noticed
control/          pausing, cancelling, changing
rest/             REST over all of it
"""
