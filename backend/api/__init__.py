"""The common part of every route of the REST API.

models            remembered answers, and the rate of each caller
counters          exact limits over all processes
rate_limit        the most that a team and its keys may ask
places            the most that a team may hold open
idempotency       one effect of the same request sent twice
etags             versions, so that nobody overwrites an unseen change
bodies            strict JSON, and not too much of it
connections       bounds on what is no request yet
streamed_body     a body that its view reads itself
body_limit        a wall that stops long bodies before Django reads them
pagination        lists by the page, newest first
problems          the one shape of errors
handlers          from an exception to its problem
middleware        id, rate and errors, around every request
request_context   the request that is being worked on
logged_refusals   a line of the log each, without a traceback
request_times     durations of requests in this process
admission         refuses unknown methods, and plain http to programs
background        removes old answers and full buckets
background_times  durations of background tasks, over all workers
threaded_handler  one thread a request, from first middleware to last
"""
