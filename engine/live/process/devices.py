"""The device that Ray gave this actor."""

import ray


def claim_device() -> str:
    """`cuda` if Ray assigned a GPU. On CPU every actor gets one thread: several of them share the cores."""
    if ray.get_gpu_ids():
        return "cuda"
    import torch  # the caller is about to need it anyway; others never call this

    torch.set_num_threads(1)
    return "cpu"
