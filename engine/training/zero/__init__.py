"""Several processes by DeepSpeed's ZeRO.

trainer   the trainer of one rank
guest     DeepSpeed itself, as a guest in the process
sharding  divided parameters: step, read, fill
"""
