"""What things cost on real devices: one model a file, with formula, constants and their origin."""
