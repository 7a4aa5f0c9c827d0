"""The driver's brain: how far the run is, and when it is over.

finish  trainer and data have both finished, and both speak of the newest trainer
"""
