"""Kept runs of `bench schedules`, each beside its simulation.

kept        a folder of runs
recording   what each sample of a run had to do
simulation  the same run on the simulator, and what both of them come to
scorecard   all of them, as a document
"""
