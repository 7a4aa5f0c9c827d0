"""The way from a spec to a waiting job."""
