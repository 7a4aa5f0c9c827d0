"""Margins: room for what cannot be derived from a spec or a model's shape. None was measured on a GPU."""

from typing import Final

from engine.fit.need import GB, Term

# A process that has touched a GPU holds its driver's context, kernels and the workspace of the product library.
CUDA_CONTEXT_BYTES: Final = GB
# NCCL keeps buffers for each channel and peer, more with more communicators; a device alone has none.
NCCL_BYTES: Final = GB
# torch's allocator rounds sizes up and keeps freed blocks that no later tensor fits: a part of all that it gives out.
# Expressed in the memory of a device, so that the margin does not depend on what is counted.
FRAGMENTATION_BYTES: Final = 3 * GB


def device_margins(*, num_devices: int) -> tuple[Term, ...]:
    margins = [
        Term(what="CUDA context and workspaces", num_bytes=CUDA_CONTEXT_BYTES),
        Term(what="allocator fragmentation", num_bytes=FRAGMENTATION_BYTES),
    ]
    if num_devices > 1:
        margins.append(Term(what="NCCL buffers", num_bytes=NCCL_BYTES))
    return tuple(margins)
