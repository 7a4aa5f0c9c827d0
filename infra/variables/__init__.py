"""The documents about environment variables, written from the variables' declarations.

containers  the lines of .env.example: the control plane's variables as containers have them, and those of Compose alone
documents   .env.example and the table of infra/OPERATING.md as text
"""
