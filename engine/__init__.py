"""The engine: trains a language model by reinforcement learning, each trajectory at its own pace.

node                 a node of Ray, begun with its own word on the sandbox
signs                signs of life from inside long work
full_disk            appending to a file whose disk may be full
pickling             records on their way, by their values alone
fit_command          whether a job fits, on the command line
replay_step_command  a recorded step trained again, on the command line
simulate_command     runs on devices that are not here, on the command line
frontier_command     designs at equal staleness, on the command line
plots_command        pictures of what came out of them

spec/          data that may cross the border to the control plane
live/          bodies on Ray, and the driver
pipeline/      the brains, pure state machines
policy/        pure decisions that the brains take
sim/           the same brains under a virtual clock
inference/     rollout engines, in plain torch and vLLM
training/      trainers, on one device or several
algorithms/    advantages, losses, corrections
models/        the decoder, its files, its tokenizer
weights/       versions of weights as flat bytes
environments/  tasks, graders, tools, and the sandbox
sinks/         destinations of facts
bench/         benchmarks
"""
