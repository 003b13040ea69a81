#!/bin/sh
# getp under Open MPI: three ranks find their shards, and the merged file has to be that of one run.
#
#   tests/several-hosts/mpi.sh [GPTOSS-JIT]
#
# Needs Debian's openmpi-bin. Exit code 3, with why, where it is not there.
set -u
program=$(realpath "${1:-$(dirname "$0")/../../target/release/gptoss-jit}")
. "$(dirname "$0")/one-run.sh"
command -v mpirun >/dev/null || skip "there is no mpirun"

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
prepare

# Ranks on one machine, more of them than it may have cores; root is asked for its word twice.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# shellcheck disable=SC2086 # words
mpirun --oversubscribe -n 3 "$program" run $words -o ranks.txt 2>"$folder/ranks.log" || fail "three ranks"
grep -q "Open MPI says rank 2 of 3: shard 2/3" "$folder/ranks.log" || fail "ranks do not know who they are"
same ranks.txt "three ranks of Open MPI"
