#!/bin/sh
# opencode says hello, and runs a command that the script of answers (opencode.jsonl) asks for.  opencode.sh FOLDER SCRATCH
set -u
program=$1/node_modules/.bin/opencode
mkdir -p "$2/opencode-home" "$2/opencode-work"
export HOME="$2/opencode-home" XDG_CONFIG_HOME="$2/opencode-home/.config" XDG_DATA_HOME="$2/opencode-home/.local/share"
export OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1
cd "$2/opencode-work" || exit 1
cat >opencode.json <<CONF
{
  "model": "local/gpt-oss-20b",
  "permission": "allow",
  "provider": {
    "local": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "gptoss-jit",
      "options": { "baseURL": "${REPLAY:?}/v1", "apiKey": "none" },
      "models": { "gpt-oss-20b": {} }
    }
  }
}
CONF

ask() {
    timeout 120 "$program" run "$2" >"$HOME/out" 2>"$HOME/err" </dev/null
    code=$?
    if [ $code -eq 0 ] && grep -qF "$3" "$HOME/out"; then
        echo "ok      opencode $1"
    else
        echo "FAILED  opencode $1: exit $code"
        tail -n 20 "$HOME/out" "$HOME/err"
    fi
}
ask "says hello" "say hello" "Hello from the script."
# The sum is done by the shell: its result stands in no request but the one that brings the tool's output.
ask "runs a command and takes its output" "add two numbers" "The command said 4242."
