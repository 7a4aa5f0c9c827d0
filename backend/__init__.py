"""The control plane: who may train what, when it runs, and what became of it. Imports nothing heavy."""
