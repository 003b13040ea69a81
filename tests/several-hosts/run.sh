#!/bin/sh
# All that shares prompts out over processes and hosts, with the real launchers: Slurm, Open MPI, torchrun, Ray.
#
#   tests/several-hosts/run.sh [GPTOSS-JIT]
#
# What is not here is skipped aloud. The last line counts: `N passed, N failed, N skipped`.
set -u
here=$(cd "$(dirname "$0")" && pwd -P)
program=$(realpath "${1:-$here/../../target/release/gptoss-jit}")
passed=0 failed=0 skipped=0
for test in slurm.sh mpi.sh torchrun.sh ray.sh; do
    printf '==> %s\n' "$test"
    "$here/$test" "$program"
    case $? in
        0) passed=$((passed + 1)) ;;
        3) skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)) ;;
    esac
done
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
