"""Sanitizing of input from outside, once for routes, pages, cursors, sockets and commands."""
