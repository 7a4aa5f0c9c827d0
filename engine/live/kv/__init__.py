"""Keys and values on their way from replica to replica: after the tokens of a sample, never instead of them."""
