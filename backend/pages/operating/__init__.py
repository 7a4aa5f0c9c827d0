"""Pages for who operates the site."""
