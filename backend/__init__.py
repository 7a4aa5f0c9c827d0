"""The control plane: who may train what, when jobs run, and their results. Imports nothing heavy."""
