"""REST over jobs: shape in, call, shape out.

jobs             submit, list, show, change, cancel
new_job          the answer to a request for a new job
control          pause, resume, retry, kill, faults
queue            a pool's line, and a job's place in it
catalogue        templates and the spec's schema
representations  jobs, events and attempts, as programs see them
"""
