"""The documents about environment variables, written from the variables' declarations."""
