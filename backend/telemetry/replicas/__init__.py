"""What replicas did and hold, over time and now."""
