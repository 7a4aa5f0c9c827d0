"""Versions of weights as flat bytes, for whoever carries them."""
