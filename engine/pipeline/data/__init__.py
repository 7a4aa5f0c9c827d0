"""Data's brain: hands out prompts, gathers trajectories, makes batches of complete groups.

brain           messages in, effects out
state           the memory that must never be lost; changes by `apply` alone
commit          a gate: a message leaves once its records are on disk
prompts         the prompt to start next
assignment      the replica that works on each group
known_replicas  the last report of each replica
groups          groups that are not complete yet
accounts        what one unfinished sample said so far
partials        the text of unfinished samples so far
moves           samples on their way from one replica to another
evaluation      held-out prompts on the weights of one version
resending       when a batch is sent again
releases        versions that need not be kept for an evaluation any longer
ledger          the one end of every sample
ends            one sample of each end, to be read
"""
