"""Rollout engines: token ids in, token ids with log-probs and versions out.

port              what every rollout engine can do
requests          refuses at once what could never run
torch_engine      continuous batching in plain torch
scheduler         who waits, is read in, has a row
block_manager     who holds which block of the cache
page_store        keys and values in those blocks
prefill           prompts of several sequences in one forward
decode_batch      what a step needs of each row
decode_rows       what each row attends to
cpu_products      the fastest product on this processor, measured
memory            zeroed memory, free until touched
sampling          one token a row, by seed and position
stop              stop strings in a growing answer
vllm_engine       vLLM behind the same port
vllm_start        makes one, quiet and in this process
vllm_interpreter  which Python it runs in
vllm_worker       new weights in place, pages handed out
vllm_kv           a sequence moved from one vLLM to another
vllm_sampler      our own draw inside vLLM
"""
