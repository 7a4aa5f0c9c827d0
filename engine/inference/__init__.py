"""Rollout engines: token ids in, token ids with log-probs and versions out.

port              the calls of every rollout engine
requests          refusals at once of requests that could never run
torch_engine      continuous batching in plain torch
scheduler         the sequences that wait, are read in, have a row
block_manager     the holders of each block of the cache
page_store        keys and values in those blocks
route_pages       the experts that their tokens met
prefill           prompts of several sequences in one forward
rows/             the rows of the decode batch, and what each attends to
probing           one row read without the cache
cpu_products      the fastest product on this processor, measured
memory            zeroed memory, free until touched
sampling          one token a row, by seed and position
stop              stop strings in a growing answer
vllm/             vLLM behind the same port
"""
