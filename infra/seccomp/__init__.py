"""The filter of system calls that an engine's container runs under: Docker's default and what the sandbox needs beyond.

profile              that list, and `python -m infra.seccomp.profile`, which writes infra/images/engine/seccomp.json
docker-default.json  Docker's own, unchanged: moby 26.1.5, profiles/seccomp/default.json, Apache-2.0
"""
