"""The tokens/s of each design at equal staleness, if decoding is the limit and updates come at fixed intervals.

leads: ¼ … 3 of what replicas hold ──▶ (staleness, tokens/s) of each ──▶ the most within so much staleness
"""
