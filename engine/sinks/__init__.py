"""Sinks of facts: to disk first and from there to the control plane; or only to a file, or to memory."""
