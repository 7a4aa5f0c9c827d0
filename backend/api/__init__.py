"""What every route of the REST API has in common.

models            remembered answers, and how fast each caller goes
counters          exact limits over all processes
rate_limit        how often one caller may ask
idempotency       the same request twice is one effect
etags             nobody overwrites what they have not seen
bodies            strict JSON, and not too much of it
body_limit        turns away long bodies before Django reads them
pagination        lists by the page, newest first
problems          the one shape of errors
handlers          from an exception to its problem
middleware        what happens around every request
request_context   which request is being worked on
request_times     how long requests took in this process
background        forgets old answers and full buckets
background_times  how long background tasks took, over all workers
threaded_handler  one thread a request, from first middleware to last
"""
