"""Pages for operators of the site."""
