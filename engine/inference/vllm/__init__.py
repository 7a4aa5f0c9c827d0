"""vLLM behind the rollout port.

engine       the port itself: what a sequence has said, which version wrote it, when a stop string ends it
start        one engine, quiet and in this process
front        requests straight to its core, tokens straight from it
interpreter  the Python that it runs in
worker       new weights in place, pages handed out
kv           a sequence moved from one vLLM to another
sampler      our own draw inside vLLM's V1 runner, on a CPU
routes       the experts that tokens met, which its V2 runner notes
slot_draw    the same inside its V2 runner, on a GPU
"""
