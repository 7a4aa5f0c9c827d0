"""What every part's body has in common.

loop       one inbox, one thread, one brain; the brain's effects are carried out between two messages
heartbeat  says every second that the process lives, and what its loop is at
actor      the Ray actor around a loop: peers to send to, an outbox for the driver
recording  what a brain was told and decided, written down
replaying  a recording, decided again and compared
"""
