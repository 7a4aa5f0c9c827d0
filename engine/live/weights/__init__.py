"""Weights on their way between processes.

handover       out of the trainer: one copy into shared memory
offered_bytes  the `payload` of a live run
segments       shared memory of one host
link           TCP links that carry chunks and nothing else
"""
