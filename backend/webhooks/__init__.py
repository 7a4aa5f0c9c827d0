"""Messages to a team's own servers on what became of its jobs, signed and tried again.

models      endpoints, pending events, deliveries
selectors   a team's endpoints and the messages sent
services    making, changing, removing endpoints
secret_box  the secrets that messages are signed with
addresses   the addresses that a message may go to, and those never
announcing  messages of what is no job's
fan_out     the deliveries of each event
sending     the sender of due messages, many at once
transport   one message to one receiver
settling    the outcome: delivered, tried again, or given up
background  the tick that moves all of it
api         REST over endpoints and deliveries
"""
