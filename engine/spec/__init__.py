"""Data shared by control plane and engine. Imports pydantic and nothing heavy."""
