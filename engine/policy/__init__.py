"""Pure decisions: snapshot in, decision out. No clock, no chance, no bodies."""
