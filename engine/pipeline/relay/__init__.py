"""A relay's brain: holds versions, serves its host's replicas, passes on to the next relay.

brain     messages in, effects out
members   relays alive, the one that leads, the one that is next
shelf     things here: visible versions, deltas to the newest
arrivals  versions on their way in, chunk by chunk
sending   the chunks that others asked for
transfer  a version's way through
seals     what lies here, against what lies at the relay before
"""
