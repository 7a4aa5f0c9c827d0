"""Tokens per second of the rollout engines.

decode       ours, `transformers` generate and vLLM, side by side
decode_vllm  the part of it in vLLM's environment
"""
