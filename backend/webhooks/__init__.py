"""Telling a team's own servers what became of its jobs, signed and tried again.

models      endpoints, pending events, deliveries
selectors   a team's endpoints and what was sent
services    making, changing, removing endpoints
secret_box  the secrets that messages are signed with
addresses   where a message may go, and where never
fan_out     from one event to its deliveries
sending     brings what is due, many at once
transport   one message to one receiver
settling    delivered, tried again, or given up
background  the tick that moves all of it
api         REST over endpoints and deliveries
"""
