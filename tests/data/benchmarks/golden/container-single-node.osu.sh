#!/bin/bash
# sbatch --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --time=1440 --no-requeue --exclusive
# OSU micro-benchmarks: latency, bidirectional bandwidth, all-to-all.
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
export OMPI_MCA_pml=ob1 PMIX_MCA_pml=ob1
export OMPI_MCA_btl=vader,self,tcp PMIX_MCA_btl=vader,self,tcp
export NCCL_IB_DISABLE=1
export NCCL_DEBUG=TRACE
mounts=() # folders of the node that the container sees
rank() { # COMMAND...: what each rank does
    "$@"
}
on_ranks() { # RANKS RANKS_PER_NODE COMMAND...
    local ranks="$1" functions
    local each="$2"
    shift 2
    functions=$(declare -f rank osu)
    srun --ntasks="$ranks" --ntasks-per-node="$each" --nodes=$((ranks / each)) --mpi=pmix --cpu-bind=none \
        '--container-image=registry-1.deepsquare.run#library/osu-benchmarks:latest' "${mounts[@]}" \
        bash -c "$functions; rank \"\$@\"" bash "$@"
}
osu() { # one rank; distributions install these programs outside of PATH, in folders by kind
    local found
    found=$(command -v "$1") || for found in /usr/lib*/osu-micro-benchmarks /usr/libexec/osu-micro-benchmarks \
        /usr/local/libexec/osu-micro-benchmarks /opt/osu-micro-benchmarks; do
        found=$(find "$found" -name "$1" -type f -perm -u+x 2>/dev/null | head -n 1)
        [ -z "$found" ] || break
    done
    if [ -z "$found" ]; then
        echo "no $1 here" >&2
        return 127
    fi
    "$found" "${@:2}"
}
section latency on_ranks 2 1 osu osu_latency
section bibw on_ranks 2 1 osu osu_bibw
section alltoall on_ranks 2 1 osu osu_alltoall
nonce_line fact finished yes
