"""Assets: data sets and models that a team uploaded or an operator registered."""
