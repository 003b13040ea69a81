#!/bin/sh
# aider changes a file as the script of answers (aider.jsonl) says.  aider.sh FOLDER SCRATCH
set -u
program=$1/bin/aider
mkdir -p "$2/aider"
export HOME="$2/aider"
cd "$HOME" || exit 1

ask() {
    what=$1
    shift
    echo 'print("hello")' >greet.py
    timeout 120 "$program" --model openai/gpt-oss-20b --openai-api-base "${REPLAY:?}/v1" --openai-api-key sk-test --message "say goodbye" \
        --yes-always --no-git --no-check-update --no-analytics --no-show-model-warnings --no-pretty "$@" greet.py >out 2>err </dev/null
    code=$?
    if [ $code -eq 0 ] && [ "$(cat greet.py)" = 'print("goodbye")' ]; then
        echo "ok      aider $what"
    else
        echo "FAILED  aider $what: exit $code"
        tail -n 20 out err greet.py
    fi
}
ask "changes a file"
ask "changes a file without a stream" --no-stream
