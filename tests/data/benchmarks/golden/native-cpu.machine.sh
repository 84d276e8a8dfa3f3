#!/bin/bash
# sbatch --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --mem=100M --time=10 --no-requeue
# What kind of machine a node of the partition is.
if ! type module >/dev/null 2>&1; then
    for start in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh; do
        # shellcheck disable=SC1090
        [ -r "$start" ] && . "$start" && break
    done
fi
module load openmpi/4.1
module load hpl
set -u -o pipefail
export LC_ALL=C
nonce_line() { # a line with the nonce of this run, by which the supervisor recognises it
    local text="$*"
    printf '\n@@%s %s\n' 00112233445566778899aabbccddeeff "${text//[$'\n\r']/ }"
}
section() { # NAME COMMAND...: the command's output between two lines with the nonce
    local name="$1" status=0
    shift
    nonce_line begin "$name"
    "$@" 2>&1 || status=$?
    nonce_line end "$name" "$status"
}
first_processor() { sed -n '/^[[:space:]]*$/q;p' /proc/cpuinfo; }
section os uname -s
section arch uname -m
section cpuinfo first_processor
if command -v lscpu >/dev/null; then
    section lscpu lscpu
fi
nonce_line fact finished yes
