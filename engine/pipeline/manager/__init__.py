"""The manager's brain: notices that a part is gone, has it replaced, gives lost work back, plans repacks.

brain     messages in, effects out
repacker  when to look for tails, and what to wish of data then
"""
