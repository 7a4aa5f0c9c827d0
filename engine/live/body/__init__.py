"""The base of every part's body: actor, loop, heartbeat, recording."""
