"""Whole runs on many devices: the brains that run live, under a virtual clock, priced by cost models.

setup         which devices do what, for which model, by which schedule
work          what a sample has to do, and who draws that
fleet         brains and bodies, wired
replica_body  a replica
decoding      its batch, analytically
sequence      a sample of it
residents     the versions that it holds
outcome       what came of a run
"""
