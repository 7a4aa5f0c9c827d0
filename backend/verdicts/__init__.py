"""The verdict on a run: whether it is well, why not, and what to do about it.

rules/      what is said of what was seen: pure
models      each job's verdict, as it was last judged
seeing      what the rules are to know of a job, out of its series
findings    findings as they are kept and told
judging     judging what has news; events of alarms
letters     alarms by mail
selectors   verdicts, for readers
api         REST: the verdict on a job
background  the task that judges
"""
