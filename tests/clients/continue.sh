#!/bin/sh
# Continue says hello, and runs a command that the script of answers (continue.jsonl) asks for.  continue.sh FOLDER SCRATCH
set -u
program=$1/node_modules/.bin/cn
mkdir -p "$2/continue"
export HOME="$2/continue" CONTINUE_GLOBAL_DIR="$2/continue/.continue" CONTINUE_TELEMETRY_ENABLED=0
cd "$HOME" || exit 1
cat >config.yaml <<CONF
name: local
version: 1.0.0
schema: v1
models:
  - name: local
    provider: openai
    model: gpt-oss-20b
    apiBase: ${REPLAY:?}/v1
    apiKey: none
    roles: [chat]
CONF

ask() {
    timeout 120 "$program" --config config.yaml --auto -p "$2" >out 2>err </dev/null
    code=$?
    if [ $code -eq 0 ] && grep -qF "$3" out; then
        echo "ok      continue $1"
    else
        echo "FAILED  continue $1: exit $code"
        tail -n 20 out err
    fi
}
ask "says hello" "say hello" "Hello from the script."
# The sum is done by the shell: its result stands in no request but the one that brings the tool's output.
ask "runs a command and takes its output" "add two numbers" "The command said 4242."
