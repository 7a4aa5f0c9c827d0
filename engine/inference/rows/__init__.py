"""Rows of the decode batch: what a step needs of each, and the keys and values that it attends to.

port          the face of both kinds of rows
banded        on a CPU: tensors as long as there are rows
batch         the tokens, positions and chance of each
bands         keys and values in windows of rows of like length
window        rows that end at the same column
paged         on a GPU: steps of few sizes, at fixed addresses
row_state     what such a step needs of each row, on the device
captures      such steps as CUDA graphs
pages         keys and values read from the blocks themselves
pages_kernel  in place, by a kernel in triton
"""
