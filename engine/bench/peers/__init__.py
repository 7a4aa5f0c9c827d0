"""What `bench peer` compares: tasks, and a run of each system on one of them.

tasks      what both train on
split      a run's figure, and where a step's time goes
ours       a run of this engine
trl        a run of TRL, in a process of its own
trl_tools  an environment's turns as TRL's tools
processes  CPU seconds by part
"""
