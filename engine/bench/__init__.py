"""Benchmarks: each one measures, prints a table and says which machine it ran on.

command          the start of one by its name
report           rows of numbers, for people or as JSON
runs             whole jobs on this machine's own Ray
decode           tokens per second, against other engines
decode_vllm      the half of it in vLLM's environment
learn            reward against samples and time, for every schedule
schedules        every schedule on one trace of waits
repack           repack on and off, and the cost of a move
repack_pages     that of its pages, between replicas
relay            the time for which weights stop the trainer, and travel
relay_publisher  its trainer, which does not train
relay_install    its replica, which only takes weights
loopback         the same bytes over bare sockets
handover         weights out of the trainer against one copy of their bytes
put_together     what two of its hosts have, with the relay that leads
train            a trainer's pass at true widths
gpu              a trainer's work on a GPU, each figure beside its bound
gpu_probes       its figures
batch            a batch's way in
data             one data process under the traffic of many replicas
data_traffic     that traffic
data_book        its words
checkpoint       the time for which saving stops training, and that of the disk
peer             samples per second, against TRL, and where a step's time goes
peers/           what it compares
"""
