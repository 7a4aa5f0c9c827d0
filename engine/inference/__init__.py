"""Rollout engines: token ids in, token ids with log-probs and versions out."""
