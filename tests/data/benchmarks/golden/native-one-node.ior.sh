#!/bin/bash
# sbatch --nodes=1 --ntasks-per-node=8 --cpus-per-task=1 --mem=0 --time=1440 --no-requeue --exclusive
# IOR on the volumes, written and read; without ior, a small test of each with fio.
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
    functions=$(declare -f rank)
    mpirun -np "$ranks" bash -c "$functions; rank \"\$@\"" bash "$@"
}
test_folder="" # in the volume, of this job alone; a job that is cancelled shall not leave it behind
remove() { rm -rf -- "$1"; }
clean_up() {
    [ -z "$test_folder" ] || remove "$test_folder"
    test_folder=""
}
trap clean_up EXIT
trap 'exit 143' TERM INT
test_with_ior() { # VOLUME MORE...
    local volume="$1"
    shift
    nonce_line note "storage.$volume measured with ior: a write ends when it is on the disk (fsync, -e), a read may come from memory"
    section "ior.$volume" on_ranks 8 8 \
        ior -a MPIIO -i 5 -t 2M -b 1280M -C --collective -g -e -w -r \
        -O summaryFormat=CSV "$@" -o "$test_folder/test"
}
test_with_fio() { # VOLUME; read again from the disk, as fio drops what the system keeps of the file
    local volume="$1" way direct=1
    fio --name=probe --filename="$test_folder/test" --rw=write --bs=4k --size=4k --direct=1 >/dev/null 2>&1 || direct=0
    nonce_line note "storage.$volume measured with fio, direct=$direct, 256 MB on one node (no ior there): a write ends with fsync"
    for way in write read; do
        section "fio.$volume.$way" fio --name=volume --filename="$test_folder/test" --rw="$way" --bs=2M --size=256M \
            --ioengine=psync --direct="$direct" --end_fsync=1 --invalidate=1 --output-format=json
    done
}
own_folder() { # VOLUME FOLDER: a name that was known before could be another user's link to any file
    local why
    test_folder=$(mktemp -d -- "$2/benchmark-XXXXXXXXXX" 2>&1) && return
    why="$test_folder"
    test_folder=""
    nonce_line missing "ior.$1" "no folder for the test in $2: $why"
    return 1
}
test_volume() { # VOLUME FOLDER MORE...
    if ! [ -d "$2" ] || ! [ -w "$2" ]; then
        nonce_line missing "ior.$1" "no folder $2 to write to on the node"
        return
    fi
    if command -v ior >/dev/null; then
        own_folder "$1" "$2" && test_with_ior "$1" "${@:3}"
    elif command -v fio >/dev/null; then
        own_folder "$1" "$2" && test_with_fio "$1"
    else
        nonce_line missing "ior.$1" "neither ior nor fio on the node"
    fi
    clean_up
}
nonce_line fact volume.scratch planned
nonce_line fact volume.shared-world-tmp planned
nonce_line fact volume.shared-tmp planned
nonce_line fact volume.disk-world-tmp planned
nonce_line fact volume.disk-tmp planned
nonce_line note measured on one node
test_volume scratch /opt/cache/shared
test_volume shared-world-tmp /opt/cache/world-tmp
test_volume shared-tmp /opt/cache/persistent
test_volume disk-world-tmp /opt/cache/disk/world-tmp -F
test_volume disk-tmp /opt/cache/disk/tmp -F
nonce_line fact finished yes
