"""Tokens per second of the rollout engines.

decode          ours, `transformers` generate and vLLM, side by side
decode_vllm     the part of it in vLLM's environment
adapters_vllm   an adapter beside its base in vLLM, and merged into it
beside_alone    vLLM through us against vLLM alone, and our own time a step
contestants     the part of it in vLLM's environment
null_model      a model that answers at once
torch_on_device ours in `bench gpu`, each beside its bound
on_device       vLLM's figures there
on_device_vllm  the part of it in vLLM's environment
in_vllm         a process of vLLM's environment that is asked line by line
"""
