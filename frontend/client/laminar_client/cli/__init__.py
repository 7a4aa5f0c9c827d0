"""The command line: `laminar`. Commands are thin: they call the client and print the result."""
