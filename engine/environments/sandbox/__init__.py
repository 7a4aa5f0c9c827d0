"""The sandbox for untrusted code: a model's answer, a data set's tests, a customer's environment.

engine process ── spawns ──> bubblewrap ──> inside/bootstrap.py ──> the untrusted code
   │  ▲ pipes: stdin, stdout, stderr, status; for workers also requests and answers
"""
