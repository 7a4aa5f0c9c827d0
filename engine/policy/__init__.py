"""Pure decisions: snapshot in, decision out. No clock, no randomness, no effects."""
