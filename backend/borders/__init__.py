"""What comes in from outside, made safe once for routes, pages, cursors, sockets and commands.

types       one type for ids, one for moments, one for days, one for names, one for counts
converters  the same for the addresses of pages
wall        what no request may hold: NUL and halves of characters, in path, query, form or cookie
proxies     whose X-Forwarded-For is believed, and of whom a request comes
gzipped     what goes out, compressed where that gives no secret away
sealing     boxes for secrets that lie in the database
told        columns of messages that tenants read: no path of a host is in them
"""
