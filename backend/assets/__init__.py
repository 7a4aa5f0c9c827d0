"""Assets: the data sets and models that a team uploaded, or that an operator registered."""
