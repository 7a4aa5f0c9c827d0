"""The manager's brain: notices that a part is gone, has it replaced, gives lost work back, plans repacks.

brain     messages in, effects out
placing   the hosts of parts, as hosts come and go
repacker  the search for tails, and wishes to data that follow
"""
