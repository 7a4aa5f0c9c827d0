"""A relay's brain: holds versions, serves its host's replicas, passes on to the next relay.

brain     messages in, effects out
members   who is alive, who leads, who is next
shelf     what is here: visible versions, deltas to the newest
arrivals  what is on its way in, chunk by chunk
sending   which chunks others asked for
transfer  a version's way through
"""
