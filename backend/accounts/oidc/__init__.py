"""Signing in with a company's own OpenID provider."""
