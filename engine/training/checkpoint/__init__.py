"""Checkpoints: written whole or not at all, by every rank its own part, and the same from every trainer.

folder        a folder whose manifest comes last
content       the content of every trainer's
saving        the copy that training stands still for, and the act that writes it
staging       host memory for that copy
host_memory   how much of it there is
rank_share    the files of one rank
tensor_file   safetensors, written as tensors come
shares        the values that a rank has, by the names that the world knows
stored_state  values read from the files of any number of ranks
exact_state   moments and random streams, for an exact resume
"""
