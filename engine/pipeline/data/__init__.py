"""Data's brain: hands out prompts, gathers what comes back, makes batches of whole groups.

brain           messages in, effects out
state           what must never be forgotten; changes by `apply` alone
commit          nothing leaves before what it follows from is on disk
prompts         which prompt is begun next
assignment      which replica works on which group
known_replicas  what each replica last said of itself
groups          groups that are not whole yet
partials        what unfinished samples said so far
moves           samples on their way from one replica to another
evaluation      held-out prompts on the weights of one version
releases        versions that need not be kept for an evaluation any longer
ledger          the one end of every sample
"""
