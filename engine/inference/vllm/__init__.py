"""vLLM behind the rollout port.

engine         the port itself
live_sequence  what a sequence has said, which version wrote it, when a stop string ends it
adapters       several versions of one base side by side
cpu_adapters   their products on a CPU, for vLLM's own
start          one engine, quiet and in this process
front          requests straight to its core, tokens straight from it
interpreter    the Python that it runs in
core           one vLLM that works or is of no use, and its workers' processes
worker         our calls to a worker of it
weights        new weights in place, mapped by each worker
kv             a sequence moved from one vLLM to another
sampler        our own draw inside vLLM's V1 runner, on a CPU
slot_draw      the same inside its V2 runner, on a GPU
routes         the experts that tokens met, which its V2 runner notes
probing        a fixed row of tokens read, while all else stands still
"""
