# expect: TimedOut
"""Ignores all signals that can be ignored, the one for the processor-time limit included."""

import signal

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
signal.pause()
