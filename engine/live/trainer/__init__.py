"""The trainer: trains, hands versions over, has checkpoints written."""
