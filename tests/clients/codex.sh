#!/bin/sh
# codex says hello, and runs a command that the script of answers (codex.jsonl) asks for.  codex.sh FOLDER SCRATCH
set -u
program=$1/node_modules/.bin/codex
mkdir -p "$2/codex-home" "$2/codex-work"
export CODEX_HOME="$2/codex-home" HOME="$2/codex-home"
cat >"$CODEX_HOME/config.toml" <<CONF
model = "gpt-oss-20b"
model_provider = "local"

[model_providers.local]
name = "gptoss-jit"
base_url = "${REPLAY:?}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
CONF
cd "$2/codex-work" || exit 1

ask() {
    timeout 120 "$program" exec --skip-git-repo-check --sandbox "${SANDBOX:-danger-full-access}" "$2" >"$CODEX_HOME/out" 2>"$CODEX_HOME/err" </dev/null
    code=$?
    if [ $code -eq 0 ] && grep -qF "$3" "$CODEX_HOME/out"; then
        echo "ok      codex $1"
    else
        echo "FAILED  codex $1: exit $code"
        tail -n 20 "$CODEX_HOME/out" "$CODEX_HOME/err"
    fi
}
ask "says hello" "say hello" "Hello from the script."
# The sum is done by the shell: its result stands in no request but the one that brings the tool's output.
ask "runs a command and takes its output" "add two numbers" "The command said 4242."
