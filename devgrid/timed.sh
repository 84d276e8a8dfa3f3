#!/bin/bash
# Runs a command of the setup, and tells in one line what it is for and how long it took: timed.sh "npm packages" npm ci
set -euo pipefail
printf 'setup: %s ...' "$1"
shift
begun=$SECONDS
"$@" || { status=$?; echo " failed"; exit "$status"; }
echo " $((SECONDS - begun)) s"
