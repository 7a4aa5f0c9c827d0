"""Pure decisions: snapshot in, wish out. No clock, no chance, no bodies."""
