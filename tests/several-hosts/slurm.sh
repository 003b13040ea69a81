#!/bin/sh
# Slurm with two nodes on this machine, each in a network of its own, and getp on them: tasks that find their shards, a task
# that is killed, a job array, and the merged file, which has to be that of one run.
#
#   tests/several-hosts/slurm.sh [GPTOSS-JIT]
#
# Needs root, iproute2, and Debian's slurm-wlm and munge. Exit code 3, with why, where something is not there. Everything is in
# a folder that is removed, and in processes and networks that end with the script.
set -u
program=$(realpath "${1:-$(dirname "$0")/../../target/release/gptoss-jit}")
. "$(dirname "$0")/one-run.sh"

[ "$(id -u)" -eq 0 ] || skip "networks and nodes are made by root"
for tool in ip slurmctld slurmd srun sbatch munged mungekey unshare; do
    command -v "$tool" >/dev/null || PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null || skip "there is no $tool"
done
PATH="$PATH:/usr/sbin"

folder=$(mktemp -d /tmp/slurm-XXXXXX) || exit 1
chmod 755 "$folder"
clean() {
    for pid in $(cat "$folder"/*.pid 2>/dev/null); do kill "$pid" 2>/dev/null; done
    sleep 1
    for pid in $(cat "$folder"/*.pid 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
    for i in 1 2; do ip link del "gj-v$i" 2>/dev/null; ip netns del "gj-node$i" 2>/dev/null; done
    ip link del gj-bridge 2>/dev/null
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

# ---- two hosts behind a bridge, which is the third ----
ip link add gj-bridge type bridge && ip addr add 10.231.7.1/24 dev gj-bridge && ip link set gj-bridge up \
    || skip "no network can be made here"
for i in 1 2; do
    ip netns add "gj-node$i" && ip link add "gj-v$i" type veth peer name eth0 netns "gj-node$i" || skip "no network can be made here"
    ip link set "gj-v$i" master gj-bridge up
    ip -n "gj-node$i" addr add "10.231.7.1$i/24" dev eth0
    ip -n "gj-node$i" link set eth0 up
    ip -n "gj-node$i" link set lo up
done

# ---- munge: who is who ----
mkdir -m 700 "$folder/munge" "$folder/munge/log"
mungekey --create --keyfile="$folder/munge/key" || fail "no key"
munged --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munge/log/munged.log" --seed-file="$folder/munge/seed" || fail "munged"

# ---- Slurm ----
cat >"$folder/slurm.conf" <<CONF
ClusterName=gptoss
SlurmctldHost=$(hostname)(10.231.7.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SelectType=select/cons_tres
ReturnToService=2
SlurmdTimeout=15
MpiDefault=none
NodeName=node1 NodeAddr=10.231.7.11 CPUs=4 State=UNKNOWN
NodeName=node2 NodeAddr=10.231.7.12 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
CONF
echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"
export SLURM_CONF="$folder/slurm.conf"
mkdir -p "$folder/state" "$folder/spool-node1" "$folder/spool-node2"
slurmctld -i || fail "slurmctld"
for i in 1 2; do
    ip netns exec "gj-node$i" unshare --uts sh -c "hostname node$i && exec slurmd -N node$i" || fail "slurmd on node$i"
done
tries=0
until [ "$(sinfo -h -o %T | sort -u)" = idle ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 60 ] || fail "the nodes do not come up: $(sinfo -h)"
    sleep 0.5
done

# ---- prompts, and what one run makes of them ----
prepare

# shellcheck disable=SC2086
srun -N 2 -n 5 --kill-on-bad-exit=1 "$program" run $words -o step.txt 2>"$folder/step.log" || fail "a step of 5 tasks"
grep -q "Slurm says rank 4 of 5: shard 4/5" "$folder/step.log" || fail "tasks do not know who they are"
same step.txt "five tasks on two nodes"

# A task is killed when another has answers; the step ends, and the same command goes on.
cat >killed.sh <<TASK
#!/bin/sh
if [ "\$SLURM_PROCID" = 1 ] && [ ! -e killed ]; then
    while [ ! -s killed.txt.records.0-of-4 ]; do sleep 0.05; done
    touch killed
    kill -9 \$\$
fi
exec "$program" run $words -o killed.txt
TASK
chmod 755 killed.sh
srun -N 2 -n 4 --kill-on-bad-exit=1 ./killed.sh 2>"$folder/killed.log" && fail "a step whose task was killed ended well"
"$program" merge $words -o killed.txt 2>"$folder/missing.log" && fail "what is missing was merged"
grep -q "prompts have no answer" "$folder/missing.log" || fail "what is missing is not told"
srun -N 2 -n 4 --kill-on-bad-exit=1 ./killed.sh 2>>"$folder/killed.log" || fail "the same command again"
same killed.txt "a task that was killed, and the same command again"

# A batch script is no task; its array's parts take their index.
cat >array.sh <<TASK
#!/bin/sh
exec "$program" run $words -o array.txt --shard "\$SLURM_ARRAY_TASK_ID/\$SLURM_ARRAY_TASK_COUNT"
TASK
sbatch --wait --array=0-2 -o "$folder/array-%a.log" array.sh >/dev/null || fail "an array"
same array.txt "a job array of three"
cat >batch.sh <<TASK
#!/bin/sh
exec "$program" run $words -o batch.txt
TASK
sbatch --wait -n 3 -o "$folder/batch.log" batch.sh >/dev/null || fail "a batch script"
cmp -s alone.txt batch.txt || fail "a batch script took itself for a task"
echo "ok: a batch script with three tasks and no srun is one run"
