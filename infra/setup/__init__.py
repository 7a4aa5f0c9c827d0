"""The maker of .laminar/venv from the locks: `make demo`, `make up` and `make test` run it first. With --vllm it makes
.laminar/vllm, the environment of rollout engines that are vLLM, in the build that this machine can use: `make vllm` and
`make test`.

Only the standard library and the syntax of Python 3.8: an old interpreter must get far enough to print the problem.
"""
