"""API keys: scopes, service accounts, limits, and the bearer of a request."""
