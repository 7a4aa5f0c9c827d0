"""The device that Ray assigned to this actor."""

import ray


def claim_device() -> str:
    """`cuda` if Ray assigned a GPU. On CPU every actor gets one thread: several of them share the cores."""
    if ray.get_gpu_ids():
        return "cuda"
    import torch  # the caller needs it anyway

    torch.set_num_threads(1)
    return "cpu"
