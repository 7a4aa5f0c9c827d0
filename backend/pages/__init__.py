"""Pages in the browser, made on the server."""
