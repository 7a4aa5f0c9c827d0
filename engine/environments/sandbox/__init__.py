"""The sandbox for code that nobody here wrote: a model's answer, a dataset's tests, a customer's environment.

engine process ── spawns ──> bubblewrap ──> inside/bootstrap.py ──> the untrusted code
   │  ▲ pipes: stdin, stdout, stderr, status; for workers also requests and answers
"""
