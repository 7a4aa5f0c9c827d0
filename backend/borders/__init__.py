"""What comes in from outside, made safe once for routes, pages, cursors, sockets and commands."""
