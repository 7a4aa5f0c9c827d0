"""Makes .laminar/venv from the locks: `make demo`, `make up` and `make test` run this first. With --vllm it makes
.laminar/vllm, the environment of rollout engines that are vLLM: `make vllm` and `make test`.

Only the standard library, and words that Python 3.8 can still parse: an old interpreter must come far enough to say
what is wrong.

machine      what this machine must have
paths        where things are read and made
environment  makes an environment, or adds tools
stages       one command: a line here, the rest logged
diagnoses    what pip's output means
stamp        what an environment was made from
terminal     what a person is told
"""
