"""Training: the way from trajectories to a step, of one optimizer update or several, on one device or several.

port           the calls of every trainer and holder of weights
batch          trajectories as arrays, which ranks share
sequences      what attention sees of them
checks         what a model can be trained on
settings       the part of a spec that a trainer takes
torch_trainer  one process, one device
fsdp           several processes, by torch's FSDP2
zero           several processes, by DeepSpeed's ZeRO
held_weights   no trainer, for jobs that only evaluate
checkpoint     a folder whose manifest comes last, and what trainers keep in it
ranks          this process among those that train one model
optimizer      AdamW, its learning rate and its moments
parts          what is trained, by the names that the world knows
replay         a step recorded and trained again, to the bit
step           trajectories as tensors, losses, updates, metrics
"""
