"""The pure scheduling decision: a snapshot of pools and jobs in, starts, victims and reasons out."""
