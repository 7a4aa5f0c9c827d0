"""The common part of every part's body.

loop       one inbox, one thread, one brain; the brain's effects are carried out between two messages
handed     an answer to the driver's poll, kept until it has come
heartbeat  news every second that the process lives, and of the work its loop is at
actor      the Ray actor around a loop: peers to send to, an outbox for the driver
recording  a brain's messages and decisions, written down
replaying  a recording, decided again and compared
"""
