"""What each design makes at equal staleness, where decoding is the limit and updates come at a fixed distance.

    leads: ¼ … 3 of what replicas hold ──▶ (staleness, tokens/s) of each ──▶ the most within so much staleness

cells    a device, a model, contexts, a time between updates; and the set-up of a run there
curves   a design's points in a cell, and the frontier of them
"""
