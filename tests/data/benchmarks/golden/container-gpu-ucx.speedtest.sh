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
export UCX_LOG_LEVEL='it'"'"'s 5'
speedtest_once() {
    srun --ntasks=1 --ntasks-per-node=1 --nodes=1 --mpi=none '--container-image=registry-1.docker.io#gists/speedtest-cli:1.2.0' --container-mount-home --container-workdir=/tmp '--label=no words'"'"' end' \
        speedtest --accept-license --accept-gdpr --format=json --progress=no
}
section speedtest speedtest_once
nonce_line fact finished yes
