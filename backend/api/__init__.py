"""The common part of every route of the REST API."""
