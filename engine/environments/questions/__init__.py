"""Questions from a customer's files: a data set by position, larger than memory."""
