"""Will it fit: bytes of each device and host, and the arithmetic of a step, from a model's shape and a spec alone.

shape         what of a config.json decides it
known_models  shapes that are public
plan          how a trainer divides and computes
activations   what autograd keeps of a layer, a token
trainer       each of its devices, term by term
weights       as they lie on a device, and as products take them
teacher       what it adds to each of them
replica       its device, or each of several
forwards      what a token's forward takes there
dealing       a model that a replica's devices hold together
hosts         memory beside the devices
gradients     on their way over the devices
margins       room for what cannot be known
need          terms, phases, and how they are added and told
durations     the arithmetic of a step, its shortest time, and limits of time
backends      the same job by either backend of the trainer
remedies      changes that make it fit, least harm first
verdict       whether it fits, and which change is the smallest
table         known models on usual clusters
"""
