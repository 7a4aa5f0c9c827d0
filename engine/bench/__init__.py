"""Benchmarks: each one measures, prints a table and says which machine it ran on.

command       the start of one by its name
report        rows of numbers, for people or as JSON
runs          whole jobs on this machine's own Ray
learn         reward against samples and time, for every schedule
schedules     every schedule on one trace of waits
deciding/     what each schedule has replicas do at true widths: counted, measured, priced, simulated
versions/     what versions cost in learning
pairs/        kept runs, each beside its simulation
repack        repack on and off, and the cost of a move
repack_pages  that of its pages, between replicas
train         a trainer's pass at true widths
gpu           a trainer's work on a GPU, each figure beside its bound
gpu_probes    its figures
batch         a batch's way in
checkpoint    the time for which saving stops training, and that of the disk
graders       hundreds of calls to a grader that waits
peer          samples per second, against TRL, and where a step's time goes
peers/        what it compares
rollouts/     tokens per second of the rollout engines, beside others and beside vLLM alone
relays/       weights on their way
data/         one data process under the traffic of many replicas
"""
