#!/bin/sh
# start.sh COMMAND…: that command, where there is TLS to end. By a plain address Caddy would serve port 80 alone.
case "$LAMINAR_PUBLIC_URL" in
    https://*) exec "$@" ;;
esac
echo "LAMINAR_PUBLIC_URL must begin with https:// where the profile tls is used, got $LAMINAR_PUBLIC_URL: write it so, or" \
    "take tls out of COMPOSE_PROFILES" >&2
exit 1
