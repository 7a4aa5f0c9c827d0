"""Rows of the decode batch: what a step needs of each, and the keys and values that it attends to.

port    the face of both layouts
bands   on a CPU: windows of rows of like length
window  rows that end at the same column
paged   on a GPU: the blocks themselves
batch   the tokens, positions and chance of each row
"""
