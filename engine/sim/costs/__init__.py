"""What things cost on real devices: one model a file, with formula, constants and their origin.

constants    a constant with its origin; the book of those of a run
devices      types of devices
links        links between them
models       models
slots        several versions in one replica
lora         adapters
memory       room for keys and values, and what does not fit
decode       a decode step
prefill      tokens read at once
training     a training step
handover     the trainer's stall
relay        the chain of relays
install      new weights in a replica
repack       a move of sequences with their keys and values
switch       colocated devices between their two roles
lengths      how long responses are
environment  tools
grading      rewards
messages     messages and the log
frozen       when constants were frozen, and every change since
calibration  what was fitted to what, and what is left over
"""
