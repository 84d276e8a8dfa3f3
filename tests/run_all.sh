#!/usr/bin/env bash
# What `make test`, `make test-extended` and `make attacks` run: PYTEST WORKERS [FOLDER [OPTION...]]. Files side by side,
# then the tests that want a quiet machine, one at a time. The status is 0 when both are green; the last lines say what
# each came to.
set -uo pipefail
unset PYTHONDONTWRITEBYTECODE  # without it, a later run collects the tests in half of the time
cd "$(dirname "$0")/.."
LIMIT_S=3600 # a run that hangs is stopped by pytest's own interrupt, which tells what failed and what ran
NO_TEST=5    # pytest's status when it selects no test
pytest=$1 workers=$2 folder=${3:-tests} options=("${@:4}")
logs=$(mktemp -d -p /var/tmp) # beside the grids, which link to files of the template
trap 'rm -rf "$logs"' EXIT

# grids begin with a copy of a migrated ledger, unless the caller has one
if [[ -z ${DEVGRID_LEDGER_TEMPLATE:-} ]]; then
    "${pytest%/pytest}/python" -m devgrid.ledger_template "$logs/ledger" || exit 1
    export DEVGRID_LEDGER_TEMPLATE=$logs/ledger
fi

run() {
    local name=$1
    shift
    timeout --foreground --signal INT --kill-after 60 "$LIMIT_S" "$pytest" --slowest-files 10 "$@" "${options[@]}" |
        tee "$logs/$name"
}

# in order (tests/support/plugin.py): the files that take longest come first
run beside -m "not quiet_machine" -n "$workers" --dist loadfile --no-loadscope-reorder "$folder"
beside=$?
mapfile -t quiet < <(grep -rl --include="test_*.py" "mark.quiet_machine" "$folder")
run alone -m quiet_machine "${quiet[@]}"
alone=$?
grep -h '^red: ' "$logs/beside" "$logs/alone" # again, as they stand far above the end
echo "side by side: $(tail -n 1 "$logs/beside" | tr -d '=')"
echo "one at a time: $(tail -n 1 "$logs/alone" | tr -d '=')"
if ((beside == NO_TEST && alone == 0)) || ((beside == 0 && alone == NO_TEST)); then exit 0; fi
exit $((beside != 0 ? beside : alone))
