"""Versions of weights as flat bytes, for whoever carries them.

port      what a version is, without torch
snapshot  from named tensors to bytes and back
chunks    hashes of the whole and of its pieces
delta     where two versions differ, without loss
"""
