"""Checkpoints: which there are, how long they stay, what was measured at them, and the models made of them.

models           checkpoints, evaluations, the registry
selectors        what somebody may see of them
services         recorded, pinned, dated, deleted
files            their bytes, in a folder or a bucket
verification     reads back what the engine said it saved
retention        which ones go, and the sweep
metrics          what was measured at a checkpoint's step
resuming         where a job goes on, for whoever starts attempts
evaluating       a job that only evaluates one, and its result
registry         names for those worth keeping
export           one as a Hugging Face folder, in a .tar
links            signed links for a few minutes
background       the tasks that verify, choose and remove
api              REST over checkpoints
evaluation_api   REST over evaluations
registry_api     REST over the registry
representations  how checkpoints and models look to programs
views            the download behind a signed link
"""
