#!/bin/bash
# sbatch --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --mem=100M --time=10 --no-requeue --gpus-per-node=1
# What kind of machine a node of the partition is.
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
if command -v nvidia-smi >/dev/null; then
    section gpu nvidia-smi --query-gpu=name --format=csv,noheader
else
    nonce_line missing gpu 'no nvidia-smi on the node'
fi
nonce_line fact finished yes
