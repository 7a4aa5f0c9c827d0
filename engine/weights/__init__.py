"""Versions of weights as flat bytes, for the processes that transfer and install them."""
