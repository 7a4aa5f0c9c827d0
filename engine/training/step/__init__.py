"""A step: trajectories as tensors, their losses, the updates made of them, whoever applies gradients.

loss         a step: all that it fixes first, and its updates
learned      which of the given trajectories are part of it
models       the models that a step asks
mini_batch   one update: its trajectories and its losses
dealing      the share of each rank, in equally many micro-batches
micro_batch  trajectories as tensors, cut by a bound on tokens
routes       the experts that tokens met in the rollout
probing      one fixed row, scored as the step's tokens are, for whoever installs the weights
scoring      log-probs, entropies and values of written tokens
head         log-probs over a vocabulary, in chunks
activations  what layers leave for the backward pass
gap          log-probs of rollouts against the trainer's
rounding     how much of that gap rounding explains
metrics      the metrics of a step
where        a note on an error: the micro-batch that it was raised in
witness      what a step computes on its way, for whoever compares two
ranks        the processes that make one step together, as a step sees them
"""
