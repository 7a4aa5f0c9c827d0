"""Training: the way from trajectories to a step, of one optimizer update or several, on one device or several.

port                the calls of every trainer and holder of weights
settings            the part of a spec that a trainer takes
micro_batch         trajectories as tensors, cut by a bound on tokens
head                log-probs over a vocabulary, in chunks
scoring             log-probs, entropies and values of written tokens
step_loss           a step: all that it fixes first, and its updates, whoever applies gradients
mini_batch          one update: its trajectories and its losses
step_metrics        the metrics of a step
torch_trainer       one process, one device
fused_adamw         its optimizer, by torch's fused kernel
learning_rate       its course over the steps of a job
stochastic_rounding moments in bfloat16
ranks               the processes that make one step together
world               this process among them
passes              a model's whole work on a micro-batch as one module
fsdp_trainer        several processes, by torch's FSDP2
fsdp_sharding       divided parameters: make, step, read, fill
deepspeed_trainer   several processes, by DeepSpeed's ZeRO
deepspeed_world     DeepSpeed itself, as a guest in the process
deepspeed_sharding  divided parameters: step, read, fill
held_weights        no trainer, for jobs that only evaluate
lora                low-rank updates in peft's layout
layout              places of public names among fused parameters, and the rows of a rank
sequence_parallel   sequences whose tokens several ranks share
stored_rows         a rank's rows, read from safetensors
trained_parts       policy or adapter, and the critic
activations         what layers leave for the backward pass
exact_dtype         the dtype that weights must have, checked
checkpoint          a folder whose manifest comes last
trainer_checkpoint  the content of every trainer's
exact_state         moments and random streams, for an exact resume
"""
