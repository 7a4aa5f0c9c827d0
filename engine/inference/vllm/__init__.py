"""vLLM behind the rollout port."""
