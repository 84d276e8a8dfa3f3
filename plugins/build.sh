#!/bin/sh
# Builds SLURM's side into a folder: the hook with its two names, and the SPANK plugin (needs libslurm-dev).
# Usage: plugins/build.sh FOLDER
set -eu
umask 022 # SlurmUser and slurmd run these files: a site may have a umask that leaves them to root
here=$(dirname "$0")
mkdir -p "$1"
flags='-std=gnu11 -O2 -Wall -Wextra -Werror -D_FORTIFY_SOURCE=2 -fstack-protector-strong'
# shellcheck disable=SC2086  # the flags are words
"${CC:-gcc}" $flags -o "$1/supervisor-hook" "$here/hook/hook.c" "$here/hook/spool.c"
# shellcheck disable=SC2086
"${CC:-gcc}" $flags -shared -fPIC -fvisibility=default -o "$1/spank_supervisor.so" "$here/spank/spank_supervisor.c" "$here/hook/spool.c"
ln -sf supervisor-hook "$1/supervisor-started"
ln -sf supervisor-hook "$1/supervisor-ended"
