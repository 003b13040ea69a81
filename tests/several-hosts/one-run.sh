# Prompts, and what one run of the program makes of them: read with `.` by the tests beside it, whose launchers share the
# prompts out. They set `program`, and `folder`, which they remove.

skip() { printf 'skipped: %s\n' "$*"; exit 3; }
fail() { printf 'FAILED: %s\n' "$*"; tail -n 5 "$folder"/*.log 2>/dev/null; exit 1; }
[ -x "$program" ] || skip "there is no program at $program"

# Goes into a folder with the prompts and the answers of one run.
prepare() {
    mkdir -p "$folder/work" && cd "$folder/work" || exit 1
    unset GPTOSS_JIT_TEMPLATES
    export GPTOSS_JIT_CACHE="$folder/cache"
    i=0
    while [ "$i" -lt 61 ]; do echo "Once upon a time $i"; i=$((i + 1)); done >prompts.lines
    words="-m getp -i prompts.lines -n 40 -T 1 -s 7 --precision f32"
    # shellcheck disable=SC2086 # words
    "$program" run $words -o alone.txt 2>"$folder/alone.log" || fail "one run"
}

# same FILE WHAT: the shards of FILE are all there, and together the file of one run.
same() {
    # shellcheck disable=SC2086 # words
    "$program" merge $words -o "$1" 2>>"$folder/merge.log" || fail "$2: merge"
    cmp -s alone.txt "$1" || fail "$2: not the file of one run"
    echo "ok: $2"
}
