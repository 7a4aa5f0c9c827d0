"""The line of a pool: who starts next, who gives way, and why somebody waits.

scheduling     one round: read, decide, write, under the pool's lock
pool_snapshot  the pool as `decide` looks at it
admission      a start: reservations, attempt, state and outbox row at once
preemption     devices taken back, jobs resized
queue          the line, as one team may see it
explain        the reason why a job waits, and what would let it start
waiting_words  that reason as a sentence
"""
