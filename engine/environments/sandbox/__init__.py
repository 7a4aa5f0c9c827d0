"""The sandbox for code that nobody here wrote: a model's answer, a dataset's tests, a customer's environment.

    engine process ── spawns ──> bubblewrap ──> inside/bootstrap.py ──> the untrusted code
       │  ▲ pipes: stdin, stdout, stderr, status; for workers also requests and answers
       └──┴── watch.py reads /proc from outside: memory, files

- `outcome.py` says what may come of it, `run.py` runs one script, `worker.py` keeps a process warm for many calls;
- `python_tree.py`, `command.py` and `seccomp.py` say what the process can see and do;
- `child.py` owns the pipes and the deadline.
"""
