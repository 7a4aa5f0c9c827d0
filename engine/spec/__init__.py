"""Data that may cross the border between control plane and engine. Imports pydantic and nothing heavy."""
