#!/bin/bash
# Installs a lock into an environment, and tells how far it is: install-python.sh ENVIRONMENT LOCK
# On a terminal one line counts. Elsewhere a line comes at each quarter. The last line has the time.
set -euo pipefail
environment=$1 lock=$2
total=$(grep -c '^[A-Za-z0-9].*==' "$lock")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begun=$SECONDS

tell() { # TEXT
    if [ -t 1 ]; then printf '\r\033[Ksetup: Python packages: %s' "$1"; else echo "setup: Python packages: $1"; fi
}

count() {
    local line seen=0 quarter=0
    while IFS= read -r line; do
        echo "$line" >>"$log"
        case $line in
            Collecting* | Processing* | 'Requirement already satisfied'* | Ignoring*) seen=$((seen + 1)) ;;
            'Installing collected packages'*) tell "all are here, and are put into $environment" && continue ;;
            *) continue ;;
        esac
        if [ -t 1 ] || [ $((4 * seen / total)) -gt "$quarter" ]; then
            quarter=$((4 * seen / total))
            tell "$seen of $total"
        fi
    done
}

tell "$total from $lock"
if ! PYTHONUNBUFFERED=1 "$environment/bin/pip" install --disable-pip-version-check --progress-bar off --require-hashes \
    -r "$lock" 2>&1 | count; then
    echo
    cat "$log" >&2
    exit 1
fi
tell "$total in $((SECONDS - begun)) s"
if [ -t 1 ]; then echo; fi
