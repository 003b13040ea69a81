#!/bin/sh
# getp under torchrun: two agents of two workers each, as on two hosts, meet at a port of this machine; the four find their
# shards, and the merged file has to be that of one run.
#
#   tests/several-hosts/torchrun.sh [GPTOSS-JIT]
#
# Needs PyTorch (Debian's python3-torch): `torchrun`, or `python3 -m torch.distributed.run`. Exit code 3, with why, where it
# is not there.
set -u
program=$(realpath "${1:-$(dirname "$0")/../../target/release/gptoss-jit}")
. "$(dirname "$0")/one-run.sh"
torchrun=
for one in torchrun "python3 -m torch.distributed.run" "/usr/bin/python3 -m torch.distributed.run"; do
    $one --help >/dev/null 2>&1 && torchrun=$one && break
done
[ -n "$torchrun" ] || skip "there is no torchrun"

folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
prepare

port=$((20000 + $$ % 20000))
# Stdout into files, stderr shown too: asked for neither, PyTorch 1.13 fails under Python 3.11.
agent() {
    # shellcheck disable=SC2086 # words
    $torchrun --nnodes 2 --nproc_per_node 2 --node_rank "$1" --master_addr 127.0.0.1 --master_port "$port" \
        --log_dir "$folder/agent$1" --redirects 1 --tee 2 --no_python "$program" run $words -o ranks.txt
}
agent 1 2>"$folder/second.log" &
agent 0 2>"$folder/first.log" || fail "the first agent"
wait $! || fail "the second agent"
grep -q "torchrun says rank [0-3] of 4: shard" "$folder/first.log" || fail "ranks do not know who they are"
same ranks.txt "four ranks of two agents of torchrun"
