#!/bin/bash
# sbatch --nodes=2 --ntasks-per-node=4 --cpus-per-task=2 --mem=0 --time=1440 --no-requeue --exclusive
# HPL: N 89600, NB 512, P x Q 4 x 2.
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
export OMPI_MCA_pml=ob1 PMIX_MCA_pml=ob1
export OMPI_MCA_btl=vader,self,tcp PMIX_MCA_btl=vader,self,tcp
export NCCL_IB_DISABLE=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # the job's user is the operator's choice
rank() { # COMMAND...: what each rank does
    "$@"
}
on_ranks() { # RANKS RANKS_PER_NODE COMMAND...
    local ranks="$1" functions
    shift 2
    functions=$(declare -f rank hpl)
    mpirun -np "$ranks" bash -c "$functions; rank \"\$@\"" bash "$@"
}
export BENCHMARK_DAT='HPLinpack benchmark input file

HPL.out
6
1
89600
1
512
0
1
4
2
16.0
1
2
1
4
1
2
1
1
1
1
1
1
2
64
0
0
1
8

0
0
0
0'
export BENCHMARK_AFFINITY=""
export BENCHMARK_PLAIN=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
hpl() { # one rank; its files lie in a folder of its own, as a site need not have a shared one
    local node cpus gpus args=() program
    folder=$(mktemp -d) || return
    trap 'cd / && rm -rf "$folder"' EXIT
    trap 'exit 143' TERM
    program=$(command -v hpl-mxp.sh /workspace/hpl-mxp.sh hpl.sh /workspace/hpl.sh | head -n 1)
    printf '%s\n' "$BENCHMARK_DAT" >"$folder/HPL.dat"
    cp "$folder/HPL.dat" "$folder/hpccinf.txt"
    if [ -z "$BENCHMARK_PLAIN" ]; then
        while read -r node cpus gpus; do
            [ "$node" = "${SLURMD_NODENAME:-}" ] || continue
            [ "$cpus" = - ] || args+=(--cpu-affinity "$cpus")
            args+=(--gpu-affinity "$gpus")
        done <<<"$BENCHMARK_AFFINITY"
        cd "$(dirname "$program")" || return
        case "$program" in
            *hpl-mxp.sh) # NVIDIA's later images (24.03, 26.02); it wants to be told the GPUs
                "$program" --n 89600 --nb 512 --nprow 4 --npcol 2 --nporder row "${args[@]}"
                ;;
            *) "$program" --xhpl-ai "${args[@]}" --dat "$folder/HPL.dat" ;;
        esac
    elif program=$(command -v xhpl /workspace/hpl-linux-*/xhpl | head -n 1) && [ -n "$program" ]; then
        cd "$folder" && "$program"
    else
        cd "$folder" && hpcc && if [ -s hpccoutf.txt ]; then cat hpccoutf.txt; fi # the first rank writes it
    fi
}
if [ -n "$BENCHMARK_PLAIN" ] && ! command -v xhpl >/dev/null && ! command -v hpcc >/dev/null; then
    nonce_line missing compute.gflops "neither xhpl nor hpcc on the node"
    exit 0
fi
section hpl on_ranks 8 4 hpl
nonce_line fact finished yes
