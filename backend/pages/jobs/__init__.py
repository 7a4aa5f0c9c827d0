"""The jobs of the reader's teams."""
