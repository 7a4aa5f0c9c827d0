"""Turns the parts' reports into the facts that the engine sends to the control plane."""
