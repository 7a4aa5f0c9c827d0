"""The open streams of this process: each costs a socket and a place in the hub."""

from backend.api.limits.places import Limits, Places
from backend.api.problems import TooManyRequests

MOST_OF_A_TEAM = 100  # a third of a process: two teams at their limit leave room for a third
MOST_IN_A_PROCESS = 300


class TooManyStreams(TooManyRequests):
    """Your team has reached its limit of open streams. Close one first."""

    code = "too_many_streams"


open_streams = Places(lambda: Limits(of_a_team=MOST_OF_A_TEAM, of_a_process=MOST_IN_A_PROCESS))
