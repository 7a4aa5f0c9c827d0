"""The optimizer: AdamW, for whole and for sharded parameters."""
