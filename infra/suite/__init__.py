"""The test suite as a gate: how `make test` and `make test-long` run pytest, and what they record.

| module | holds |
|---|---|
| `__main__` | `python -m infra.suite gate` or `long`: the run, the retries, the verdict |
| `plugin` | the pytest plugin: order and grouping of tests, timeouts, a record of every result |
| `groups` | which test files share one worker |
| `speed` | SCALE: how much slower this machine is than the reference |
| `results` | the recorded results: failures, unsteady tests, slow tests, the time table |
| `commands` | pytest as a child process with a time budget; what it left behind is ended |
"""
