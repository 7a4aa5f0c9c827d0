"""Checkpoints: their life, their bytes, their measures, and the models made of them.

models           checkpoints, evaluations, the registry
selectors        checkpoints and models, as somebody may see them
services         recording, pinning, dating, deleting
files            their bytes, in a folder or a bucket
verification     reading back of every checkpoint that the engine saved
retention        the choice of those that go, and the sweep
metrics          measures at a checkpoint's step
resuming         the checkpoint that a job goes on from, for whoever starts attempts
evaluating       a job that only evaluates one, and its result
registry         names for those worth keeping
uploads          versions of models that somebody uploaded, a port
export           one as a Hugging Face folder, in a .tar
downloading      handing a checkpoint out, with an entry in the audit log
links            signed links for a few minutes
background       the tasks that verify, choose and remove
api              REST over checkpoints
evaluation_api   REST over evaluations
registry_api     REST over the registry
representations  checkpoints and models, as programs see them
views            the download behind a signed link
"""
