"""The trainer's brain: asks for a batch, trains, hands the new version over."""
