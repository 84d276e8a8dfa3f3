#!/usr/bin/env bash
# What `make test` runs: PYTEST WORKERS. Files side by side, then the tests that want a quiet machine, one at a time. The
# status is 0 when both are green; the last lines say what each came to.
set -uo pipefail
unset PYTHONDONTWRITEBYTECODE  # without it, a later run collects the tests in half of the time
cd "$(dirname "$0")/.."
LIMIT_S=3600 # a run that hangs is stopped by pytest's own interrupt, which tells what failed and what ran
pytest=$1 workers=$2 logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

run() {
    local name=$1
    shift
    timeout --foreground --signal INT --kill-after 60 "$LIMIT_S" "$pytest" --slowest-files 10 "$@" | tee "$logs/$name"
}

# in order (tests/support/plugin.py): the files that take longest come first
run beside -m "not quiet_machine" -n "$workers" --dist loadfile --no-loadscope-reorder
beside=$?
mapfile -t quiet < <(grep -rl --include="test_*.py" "mark.quiet_machine" tests)
run alone -m quiet_machine "${quiet[@]}"
alone=$?
echo "side by side: $(tail -n 1 "$logs/beside" | tr -d '=')"
echo "one at a time: $(tail -n 1 "$logs/alone" | tr -d '=')"
exit $((beside != 0 ? beside : alone))
