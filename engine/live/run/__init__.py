"""One attempt on a cluster: placed, wired, watched and ended. The only room that imports all others.

driver        the command of a submission: `python -m engine.live.run.driver`
attempt       from the first fact to the last
model_source  the models that a job may start from and learn from
model_check   the model's files and the spec, held against one another
chat_check    its chat template, and the job's questions
placement     the places of the actors
wiring        actors created, introduced to each other, replaced
node_probe    the command of a look at every node: `python -m engine.live.run.node_probe`
node_look     what a node finds when it looks at itself
found_assets  the models and data sets that lie on a node
starved_parts silent parts, whose hosts are asked whether they could run
supervisor    polls of every actor, and a body for the manager's brain
"""
