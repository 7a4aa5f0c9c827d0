"""Parts: what is trained, and the places of public names in it.

trained      policy or adapter, and the critic
lora         low-rank updates in peft's layout
layout       places of public names among fused parameters, and the rows of a rank
published    a process's values, straight into a version's bytes
exact_dtype  the dtype that weights must have, checked
"""
