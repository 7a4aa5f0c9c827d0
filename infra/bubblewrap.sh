#!/usr/bin/env bash
# Untrusted code runs in bubblewrap or not at all. Install it where that is possible, else say loudly what to do.
# newuidmap (uidmap) gives the sandboxes of an ordinary user users of their own; without it they are that user.
set -euo pipefail

works() { command -v bwrap >/dev/null && env -i "$(command -v bwrap)" --unshare-all --ro-bind / / true 2>/dev/null; }

installs() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

if works && { command -v newuidmap >/dev/null || ! installs; }; then exit 0; fi

if installs; then
    log="$(mktemp)"
    echo "Installing bubblewrap and uidmap for the sandbox (apt-get)"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends bubblewrap uidmap; } \
        >"$log" 2>&1 || tail -n 5 "$log"
    rm -f "$log"
    if works; then exit 0; fi
fi

if command -v bwrap >/dev/null; then
    reason="bubblewrap is installed, but may not make namespaces here."
    remedy="In a container, allow them; on Ubuntu, see kernel.apparmor_restrict_unprivileged_userns."
else
    reason="there is no bwrap on the PATH."
    remedy="Install it and run \`make test\` again; on Debian:  sudo apt-get install bubblewrap"
fi
cat <<MESSAGE
********************************************************************************
 THE SANDBOX TESTS WILL BE SKIPPED: $reason
 $remedy
 Environments that run untrusted code are refused meanwhile: custom, reasoning_gym,
 the tool python, the verifiers regex, math_verify and unit_tests.
 (With CI=true a skipped sandbox test is a failure.)
********************************************************************************
MESSAGE
