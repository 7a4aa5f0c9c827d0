#!/usr/bin/env bash
# The browser tests drive Debian's chromium. Install it where that is possible, else say loudly what to do.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    log="$(mktemp)"
    echo "Installing chromium for the browser tests (apt-get)"
    if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; } \
        >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log"
    rm -f "$log"
fi

cat <<'MESSAGE'
********************************************************************************
 THE BROWSER TESTS WILL BE SKIPPED: there is no chromium on the PATH.
 Install it and run `make test` again; on Debian:  sudo apt-get install chromium
 (With CI=true a skipped browser test is a failure.)
********************************************************************************
MESSAGE
