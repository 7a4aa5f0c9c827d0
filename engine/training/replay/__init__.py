"""A step recorded and trained again, to the bit: `python -m engine replay-step`.

record     the files of a recorded step, and digests of all that is in them
batch      a batch as tensors of one file, and back
recording  a trainer that records one of its steps
again      the step trained again, by as many ranks
verdict    the first tensor that diverges
"""
