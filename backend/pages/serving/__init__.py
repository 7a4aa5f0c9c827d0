"""Static files and response headers of every page."""
