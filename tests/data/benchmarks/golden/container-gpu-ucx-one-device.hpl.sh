#!/bin/bash
# sbatch --nodes=2 --ntasks-per-node=4 --cpus-per-task=16 --mem=0 --time=1440 --no-requeue --gpus-per-node=4 --exclusive
# HPL: N 179200, NB 512, P x Q 4 x 2.
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
export OMPI_MCA_pml=ucx PMIX_MCA_pml=ucx
export OMPI_MCA_btl='^vader,openib,tcp' PMIX_MCA_btl='^vader,openib,tcp'
export UCX_NET_DEVICES=mlx5_0:1
mounts=() # folders of the node that the container sees
rank() { # COMMAND...: what each rank does
    "$@"
}
on_ranks() { # RANKS RANKS_PER_NODE COMMAND...
    local ranks="$1" functions
    local each="$2"
    shift 2
    functions=$(declare -f rank hpl)
    srun --ntasks="$ranks" --ntasks-per-node="$each" --nodes=$((ranks / each)) --mpi=pmix --cpu-bind=none \
        '--container-image=registry-1.deepsquare.run#library/hpc-benchmarks:23.5' "${mounts[@]}" \
        bash -c "$functions; rank \"\$@\"" bash "$@"
}
export BENCHMARK_DAT='HPLinpack benchmark input file

HPL.out
6
1
179200
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
export BENCHMARK_PLAIN=
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
                [ -n "${args[*]}" ] || args=(--gpu-affinity 0:1:2:3)
                "$program" --n 179200 --nb 512 --nprow 4 --npcol 2 --nporder row "${args[@]}"
                ;;
            *) "$program" --xhpl-ai "${args[@]}" --dat "$folder/HPL.dat" ;;
        esac
    elif program=$(command -v xhpl /workspace/hpl-linux-*/xhpl | head -n 1) && [ -n "$program" ]; then
        cd "$folder" && "$program"
    else
        cd "$folder" && hpcc && if [ -s hpccoutf.txt ]; then cat hpccoutf.txt; fi # the first rank writes it
    fi
}
affinity() { # NVIDIA_SMI: node, CPUs of each GPU, GPUs; with : between
    "$1" topo -m | sed 's/\x1b\[[0-9;]*m//g' | awk -F '\t' -v node="${SLURMD_NODENAME:-}" '
        { for (i = 1; i <= NF; i++) gsub(/^ +| +$/, "", $i) }
        !column { for (i = 1; i <= NF; i++) if ($i == "CPU Affinity") column = i }
        column && $1 ~ /^GPU[0-9]+$/ {
            if ($column !~ /^[0-9][0-9,-]*$/) unknown = 1
            cpus = cpus colon $column
            gpus = gpus colon substr($1, 4)
            colon = ":"
        }
        END { if (gpus != "") print node, unknown ? "-" : cpus, gpus }'
}
if [ -z "$BENCHMARK_PLAIN" ]; then
    BENCHMARK_AFFINITY=$(srun --ntasks=2 --ntasks-per-node=1 --nodes=2 --mpi=none \
        bash -c "$(declare -f affinity); affinity \"\$1\"" bash nvidia-smi 2>/dev/null)
    [ -n "$BENCHMARK_AFFINITY" ] || nonce_line note "GPU and CPU affinity are the program's own: nvidia-smi topo told none"
fi
section hpl on_ranks 8 4 hpl
nonce_line fact finished yes
