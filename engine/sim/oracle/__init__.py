"""The oracle: its own record of what brains and driver did, against which every invariant is checked."""
