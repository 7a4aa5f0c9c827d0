"""Log lines and spans: their subject, text and form."""
