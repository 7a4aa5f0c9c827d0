"""The trainer's brain: requests a batch, trains, publishes the new version."""
