"""The way from a spec to a queued job."""
