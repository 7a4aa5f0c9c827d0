"""Signing in with a company's own OpenID provider.

provider  allauth's flow, with the checks that it leaves out
asking    requests to the provider
adapter   the people who may come in this way
"""
