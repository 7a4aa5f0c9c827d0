#!/bin/sh
# Like the official one: options alone are options of the server; a server that root starts becomes `valkey`'s.
set -e
if [ "${1#-}" != "$1" ]; then
    set -- valkey-server "$@"
fi
if [ "$1" = valkey-server ] && [ "$(id -u)" = 0 ]; then
    find . \! -user valkey -exec chown valkey '{}' +
    exec setpriv --reuid=valkey --regid=valkey --clear-groups -- sh "$0" "$@"
fi
exec "$@"
