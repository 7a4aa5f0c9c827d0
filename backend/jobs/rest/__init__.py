"""REST over jobs: shape in, call, shape out.

jobs             submit, list, show, change, cancel
new_job          how a request for a new job is answered
control          pause, resume, retry, kill, faults
queue            a pool's line, and why a job is where it is
catalogue        templates and the spec's schema
representations  how jobs, events and attempts look to programs
"""
