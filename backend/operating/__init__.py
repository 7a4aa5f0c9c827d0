"""Operation of a site: bootstrap, checks, status."""
