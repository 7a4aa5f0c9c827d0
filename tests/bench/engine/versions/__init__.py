"""The cost of versions in learning: a learner whose answers are written by the same versions as in a large run.

a run on 64 devices, simulated ──▶ for each trained answer: which versions, for what part of it ──▶ a trace
a small model ──▶ answers by stored versions, as the trace has it ──▶ trained ──▶ the next version is stored
"""
