"""The pipeline's very brains under a virtual clock, with faults drawn from a seed."""
