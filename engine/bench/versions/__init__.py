"""What versions cost in learning: a learner whose every answer is written by the versions that a large run would have
had write it.

    a run on 64 devices, simulated ──▶ for each trained answer: which versions, for what part of it ──▶ a trace
    a small model ──▶ answers by stored versions, as the trace has it ──▶ trained ──▶ the next version is stored
"""
