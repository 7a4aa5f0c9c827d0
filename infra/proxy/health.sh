#!/bin/sh
# health.sh: the proxy's health check, which also ends a proxy that was silent in six looks, and longer than five minutes
# after its start: its container begins it again. As infra/images/health.py does for the others; this image has no Python.
# The address of its own says whether it serves; that of the site would ask the web as well.
count=${COUNT:-/dev/shm/laminar-silent-looks}
if timeout -s KILL 10 wget --quiet --spider "${OWN_ADDRESS:-http://127.0.0.1:2080/}"; then
    rm -f "$count"
    exit 0
fi
looks=$(($(cat "$count" 2>/dev/null || echo 0) + 1))
echo "$looks" > "$count"
began_s=$(($(sed 's/.*) //' /proc/1/stat | cut -d ' ' -f 20) / 100))
age_s=$(($(cut -d . -f 1 /proc/uptime) - began_s))
echo "no answer in $looks looks"
if [ "$looks" -ge 6 ] && [ "$age_s" -gt "${GRACE_S:-300}" ]; then
    # What the first process started: the first itself takes no such signal from inside, and ends with it.
    for each in /proc/[0-9]*; do
        if [ "$(sed 's/.*) //' "$each/stat" 2>/dev/null | cut -d ' ' -f 2)" = 1 ]; then
            kill -KILL "${each#/proc/}"
        fi
    done
fi
exit 1
