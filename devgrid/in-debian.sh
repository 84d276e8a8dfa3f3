#!/usr/bin/env bash
# Installs, demonstrates and tests the project in a Debian of another release than this machine's: in-debian.sh [pytest's words]
#
# Root makes the release in $DEBIAN_ROOT from this machine's own mirror, once; not in the checkout, where setuptools would look
# for packages in it and follow its links for ever. What is committed is cloned into it. `make setup` has this machine's network there; `make demo` and the tests have one of their own.
# STEPS (`setup demo tests`) names what is run: `STEPS=tests` in a root that is set up already.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
release=${DEBIAN_RELEASE:-trixie}
root=${DEBIAN_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/grid-supervisor/debian-$release}
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(tests/integration/slurm tests/integration/plugins tests/integration/jobs/test_rest_submission.py
    tests/integration/jobs/test_submission_batches.py tests/integration/devgrid/test_devgrid_slurm.py tests/e2e)
[ "$(id -u)" = 0 ] || { echo "in-debian: only root can make and enter another Debian" >&2; exit 1; }

make_root() {
    "$here/devgrid/install-packages.sh" /dev/null mmdebstrap iproute2
    local mirror
    # shellcheck disable=SC2016  # apt's own words
    mirror=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | sed -n '/^Debian|Debian|/{s///p;q}')
    [ -n "$mirror" ] || { echo "in-debian: apt knows no mirror of Debian: run apt-get update" >&2; exit 1; }
    echo "in-debian: $release into $root"
    mkdir -p "$(dirname "$root")"
    rm -rf "$root.new"
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,git,make,nodejs,npm,python3,python3-venv \
        "$release" "$root.new" "$mirror"
    mv "$root.new" "$root"
}

# What pip and npm are told here, and how names are resolved.
copy_configuration() {
    local file
    for file in /etc/pip.conf /etc/npmrc /root/.npmrc /root/.config/pip/pip.conf /etc/resolv.conf /etc/hosts \
        /etc/ssl/certs/ca-certificates.crt; do
        [ -e "$file" ] || continue
        mkdir -p "$root$(dirname "$file")"
        cp -L --remove-destination "$file" "$root$file"
    done
}

# Files that stay the same keep their time, so that make installs again only what has changed.
clone() {
    local there=$root/root/supervisor
    [ -e "$there/.git" ] || git init --quiet --initial-branch=main "$there"
    git -C "$there" fetch --quiet --tags "$here" HEAD
    git -C "$there" reset --quiet --hard FETCH_HEAD
}

# The words of the shell inside. slurmd 22.05 does not start without a file system of control groups. Its root is exchanged: a program in a chroot cannot make a namespace of users.
# shellcheck disable=SC2016
mounts='mount --make-rprivate / && mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
    mount -t sysfs sysfs "$0/sys" && { [ ! -d /sys/fs/cgroup ] || mount --rbind /sys/fs/cgroup "$0/sys/fs/cgroup"; } &&'
# The name service of C answers nothing for a host with a loopback address only, so it has one more (RFC 5737).
alone='ip link set lo up && ip addr add 192.0.2.1/32 dev lo &&'
# The shell stays, as it is the first process there: it takes note of the end of those that have lost their parent.
# shellcheck disable=SC2016
enter='cd "$0" && pivot_root . . && umount --lazy . && cd /root/supervisor || exit; "$@"; exit $?'
inside=''
trap '[ -z "$inside" ] || kill -KILL "$inside" 2>/dev/null || true' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# run NETWORK COMMAND...: NETWORK is `shared` or `own`. unshare ignores SIGTERM while it waits: it is killed at our end, and the
# kernel ends all that runs in its namespace of process ids. If this script is killed, the kernel kills it, too (--pdeathsig).
run() {
    local flags=(--mount --pid --fork --kill-child --ipc) first=$mounts status=0
    if [ "$1" = own ]; then
        flags+=(--net)
        first+=$alone
    fi
    shift
    env HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PIP_FIND_LINKS='' \
        setpriv --pdeathsig KILL unshare "${flags[@]}" /bin/bash -c "$first $enter" "$root" "$@" </dev/null &
    inside=$!
    wait "$inside" || status=$?
    inside=''
    return "$status"
}

[ -d "$root" ] || make_root
copy_configuration
clone
for step in ${STEPS:-setup demo tests}; do
    case $step in
        setup) run shared make setup ;;
        demo) run own make demo ;;
        tests) run own .venv/bin/pytest "${tests[@]}" -n "${WORKERS:-2}" --dist loadfile --no-loadscope-reorder ;;
        *) echo "in-debian: STEPS has $step, expected setup, demo or tests" >&2; exit 1 ;;
    esac
done
