"""The sandbox for code that nobody here wrote: a model's answer, a dataset's tests, a customer's environment.

    engine process ── spawns ──> bubblewrap ──> inside/bootstrap.py ──> the untrusted code
       │  ▲ pipes: stdin, stdout, stderr, status; for workers also requests and answers

- `outcome.py` says what may come of it, `run.py` runs one script, `worker.py` keeps a process warm for many calls;
- `python_tree.py`, `command.py` and `seccomp.py` say what the process can see and do, `users.py` as whom,
  `memory_group.py` how much memory the tree of processes can hold;
- `gvisor.py` takes the place of bubblewrap where the operator asks for it;
- `capacity.py` says how many run at once on this host;
- `starting.py` starts it, `child.py` owns the pipes;
- `own_time.py` decides when its time is over, by what `watch.py` sees in `process_times.py`, and by `host_speed.py`;
  `excuses.py` tells those who wait under a deadline of their own what was nobody's fault.
"""
