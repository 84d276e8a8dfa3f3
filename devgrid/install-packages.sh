#!/bin/bash
# Installs the Debian packages that a list ($1) or the other arguments name and this machine lacks, and starts none of their services:
# a policy-rc.d that answers 101 stands in for the time of the installation, where the machine has none of its own.
set -euo pipefail
wanted="$(sed -e 's/#.*//' "$1" | tr -s '[:space:]' ' ') ${*:2}"
missing=()
for package in $wanted; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "setup: Debian packages: ${missing[*]}"
[ "$(id -u)" = 0 ] || { echo "setup: these packages are missing and only root can install them: ${missing[*]}" >&2; exit 1; }
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
apt_get() { apt-get -q -o DPkg::Lock::Timeout=600 "$@" >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; exit 1; }; }
apt_get update
apt_get install -y --no-install-recommends "${missing[@]}"
rm -f "$log"
