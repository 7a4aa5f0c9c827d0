"""Ranks: this process among those that train one model.

world              the ranks and their collectives
passes             a model's whole work on a micro-batch as one module
sequence_parallel  sequences whose tokens several ranks share
"""
