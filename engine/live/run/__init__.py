"""One attempt on a cluster: what places, wires, watches and ends it. The only room that imports all others.

driver        the command of a submission: `python -m engine.live.run.driver`
attempt       from the first fact to the last
model_source  which model a job may start from
placement     where the actors go
wiring        creates the actors, tells them of each other, replaces one
supervisor    polls every actor and lends the manager's brain a body
"""
