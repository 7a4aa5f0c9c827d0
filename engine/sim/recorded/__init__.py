"""What a live run told of itself, for the simulator.

facts          its facts, as observations
least_squares  a few unknowns, many observations
fit            the constants of its device, from those
"""
