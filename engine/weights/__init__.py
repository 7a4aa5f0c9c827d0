"""Versions of weights as flat bytes, for whoever carries them.

port        a version, without torch
snapshot    bytes out of named tensors, and back
spans       bytes of a version that somebody has
open_file   memory for other processes of the host, with or without a name
chunks      a version in pieces
hashes      of the whole and of its pieces
delta       the differences of two versions, without loss
low_rank    adapters as versions, and the base that they are added to
probe       whether whoever installed a version computes by it
installing  a version's tensors into a model's
"""
