#!/bin/bash
# Installs the Debian packages that a list ($1) or the other arguments name and this machine lacks, and starts none of their services:
# a policy-rc.d that answers 101 stands in for the time of the installation, where the machine has none of its own.
# Lines `## NAME` begin the list's groups. Each group that lacks something gets one line, with its time.
set -euo pipefail
list=$1
shift
policy=${SETUP_POLICY:-/usr/sbin/policy-rc.d} lock=${SETUP_LOCK:-/run/lock/grid-supervisor-setup}  # a test names others
log=$(mktemp)
prepared='' made_policy=''
trap 'rm -f "$log"; [ -z "$made_policy" ] || rm -f "$policy"' EXIT
export DEBIAN_FRONTEND=noninteractive

apt_get() { apt-get -q -o DPkg::Lock::Timeout=600 "$@" >"$log" 2>&1 || { echo; cat "$log" >&2; exit 1; }; }

# Before the first group: apt's lists are read again. Another clone's setup waits here for its turn.
prepare() {
    [ -z "$prepared" ] || return 0
    prepared=yes
    exec 9>"$lock"
    flock 9
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        made_policy=yes
    fi
    apt_get update
}

# install_group NAME PACKAGE...
install_group() {
    local name=$1 begun=$SECONDS package missing=()
    shift
    for package in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || { echo "setup: these packages are missing and only root can install them: ${missing[*]}" >&2; exit 1; }
    printf 'setup: Debian packages, %s: %s ...' "$name" "${missing[*]}"
    prepare
    apt_get install -y --no-install-recommends "${missing[@]}"
    echo " $((SECONDS - begun)) s"
}

name=others
packages=()
while IFS= read -r line || [ -n "$line" ]; do
    case $line in
        '## '*)
            install_group "$name" "${packages[@]}"
            name=${line#'## '}
            packages=()
            ;;
        '#'* | '') ;;
        *) packages+=("$line") ;;
    esac
done <"$list"
install_group "$name" "${packages[@]}"
install_group others "$@"
