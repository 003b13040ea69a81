#!/bin/sh
# Kills the whole job of `tune` ten times, each time after a random number of verdicts, and holds the table that it then
# ends with against that of a job that nobody disturbed. By hand: minutes of all cores.
#
#   tests/tune-kills/run.sh target/release/gptoss-jit FOLDER [ARCH] [TABLE]
#
# FOLDER gets caches, tables and logs. TABLE is one that an undisturbed job has written, if there is one already.
set -eu
program=$(realpath "$1")
folder=$2
arch=${3:-gfx1100}
calm=${4:-}
mkdir -p "$folder"
folder=$(realpath "$folder")

# No table of the user's has a say.
export XDG_CONFIG_HOME="$folder/config"

job() { # name of the cache and the table
  GPTOSS_JIT_CACHE="$folder/cache-$1" exec "$program" tune --arch "$arch" --tuning "$folder/$1"
}
verdicts() { cat "$folder/cache-disturbed/tune/$arch.jsonl" 2>/dev/null | wc -l; }

if [ -z "$calm" ]; then
  (job calm) > "$folder/calm.out" 2> "$folder/calm.log"
  calm="$folder/calm/$arch.toml"
fi

killed=0
while [ "$killed" -lt 10 ]; do
  until=$(($(verdicts) + $(od -An -N2 -tu2 /dev/urandom) % 300 + 1))
  (job disturbed) > "$folder/disturbed.out" 2>> "$folder/disturbed.log" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null && [ "$(verdicts)" -lt "$until" ]; do sleep 0.05; done
  kill -9 "$pid" 2>/dev/null || { echo "it ended before kill $((killed + 1))"; break; }
  wait "$pid" 2>/dev/null || true
  killed=$((killed + 1))
  echo "kill $killed at $(verdicts) verdicts"
done
(job disturbed) > "$folder/disturbed.out" 2>> "$folder/disturbed.log"

# The day and the folder's name are what may differ.
without() { sed -E '/^(date|method) /d; s/[0-9]{4}_[0-9]{2}_[0-9]{2}/DAY/' "$1"; }
without "$calm" > "$folder/calm.txt"
without "$folder/disturbed/$arch.toml" > "$folder/disturbed.txt"
if diff "$folder/calm.txt" "$folder/disturbed.txt"; then
  echo "the same table, $(grep -c '^\[\[rows' "$folder/disturbed.txt") rows, after $killed kills"
else
  echo "the tables differ"
  exit 1
fi
