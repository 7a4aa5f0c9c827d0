"""The maker of .laminar/venv from the locks: `make demo`, `make up` and `make test` run it first. With --vllm it makes
.laminar/vllm, the environment of rollout engines that are vLLM, in the build that this machine can use: `make vllm` and
`make test`.

Only the standard library, and words that Python 3.8 can still parse: an old interpreter must come far enough to say
what is wrong.

machine      demands on this machine
paths        places where things are read and made
environment  an environment made, or tools added
hook         git's pre-commit hook of a developer's copy
stages       one command: a line here, the rest logged
diagnoses    meanings of pip's output
stamp        the origin of an environment
terminal     words to a person
"""
