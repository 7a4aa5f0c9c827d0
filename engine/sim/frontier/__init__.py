"""What each design makes at equal staleness, where decoding is the limit and updates come at a fixed distance.

leads: ¼ … 3 of what replicas hold ──▶ (staleness, tokens/s) of each ──▶ the most within so much staleness
"""
