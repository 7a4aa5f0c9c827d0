"""The filter of system calls that an engine's container runs under: Docker's default and what the sandbox needs
beyond.
"""
