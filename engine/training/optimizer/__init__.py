"""The optimizer: AdamW, whoever divides its parameters."""
