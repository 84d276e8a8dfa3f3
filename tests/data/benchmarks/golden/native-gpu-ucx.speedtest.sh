#!/bin/bash
# sbatch --nodes=1 --ntasks-per-node=1 --cpus-per-task=1 --mem=1000M --time=30 --no-requeue
# Upload and download, by Ookla's speedtest.
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
speedtest_once() { # it writes down in HOME that its licence was accepted
    local folder status=0
    folder=$(mktemp -d) || return
    HOME="$folder" speedtest --accept-license --accept-gdpr --format=json --progress=no || status=$?
    rm -rf "$folder"
    return "$status"
}
is_ooklas() { speedtest --version 2>/dev/null </dev/null | grep -qi ookla; }
if is_ooklas; then
    section speedtest speedtest_once
else
    nonce_line missing speedtest "no speedtest of Ookla's on the node, and no iperf3 server is configured"
fi
nonce_line fact finished yes
