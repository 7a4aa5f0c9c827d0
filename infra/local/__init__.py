"""The whole of Laminar on one machine without containers: real servers from wheels, kept alive by one supervisor."""
