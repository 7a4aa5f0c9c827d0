"""Pages of data sets and models."""
