#!/bin/sh
# Everything that can be tested here, with nothing installed but a Rust toolchain, a C and a C++ compiler: all tests, the
# format and the lints. The last line counts them: `N passed, N failed, N skipped`. Fails if anything failed.
#
# hipRTC is fetched once into target/hiprtc, where that is possible (tests/fetch-hiprtc.sh), unless GPTOSS_JIT_HIPRTC
# names one; LLVM's tools likewise into target/llvm (tests/fetch-llvm.sh), unless GPTOSS_JIT_LLVM does; and a published
# model into gptoss-jit-tests in the user's cache folder (tests/fetch-smollm2.sh), unless GPTOSS_JIT_SMOLLM2 does. The
# temporary folder and the config folder are private to the run and start empty. Kernels that tests compile stay in
# target/tmp: a kernel's key is all that its object depends on, so that what is found there is what would be compiled. They
# may be removed.
set -u
cd "$(dirname "$0")/.." || exit 1

passed=0 failed=0 skipped=0
say() { printf '\n==> %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*"; skipped=$((skipped + 1)); }
count() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }

scratch=$(mktemp -d) || exit 1
clients=
trap '[ -z "$clients" ] || kill "$clients" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p target "$scratch/tmp" "$scratch/config" || exit 1
unset GPTOSS_JIT_TEMPLATES GPTOSS_JIT_CACHE_SIZE GPTOSS_JIT_JOBS GPTOSS_JIT_GRAPHS GPTOSS_JIT_LOG GPTOSS_JIT_SIM_SEED
unset GPTOSS_JIT_ADVERSARY_RUNS GPTOSS_JIT_ADVERSARY_SEED
unset GPTOSS_JIT_WALKS GPTOSS_JIT_WALKS_SEED GPTOSS_JIT_HARMONY_PROMPTS GPTOSS_JIT_ALL_ARCHS GPTOSS_JIT_PLACEMENTS
export TMPDIR="$scratch/tmp" XDG_CONFIG_HOME="$scratch/config" GPTOSS_JIT_CACHE="$scratch/cache"
# One test more than there are cores: some wait for a deadline.
[ -n "${RUST_TEST_THREADS:-}" ] || { cores=$(nproc 2>/dev/null) && export RUST_TEST_THREADS=$((cores + 1)); }

# What is fetched comes from elsewhere, and is unpacked: the build goes on meanwhile.
fetch() {
    (
        tests/fetch-"$1".sh "$2" >"$scratch/fetched-$1" 2>&1
        echo $? >"$scratch/fetched-$1-status"
    ) &
}
# What came of it: a path as `VARIABLE` for the tests, or in words.
fetched() {
    unset "$2"
    cat "$scratch/fetched-$1"
    status=$(cat "$scratch/fetched-$1-status" 2>/dev/null || echo none)
    case $status in
        0) export "$2=$3" && echo "$2=$3" ;;
        3) echo "WARNING: $4" ;;
        *) echo "FAILED: tests/fetch-$1.sh, exit code $status" && count 1 ;;
    esac
}
[ -n "${GPTOSS_JIT_HIPRTC:-}" ] || fetch hiprtc target/hiprtc
[ -n "${GPTOSS_JIT_LLVM:-}" ] || fetch llvm target/llvm
models=${XDG_CACHE_HOME:-${HOME:-$PWD/target}/.cache}/gptoss-jit-tests
[ -n "${GPTOSS_JIT_SMOLLM2:-}" ] || fetch smollm2 "$models"

# The lints are looked for by what compiles: clippy is the compiler, which looks at more. On its own it would begin by
# checking all dependencies once more. They are warnings here, so that what has one is tested all the same.
lints=no
if cargo clippy --version >/dev/null 2>&1; then
    lints=yes
    export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=--cap-lints=warn
fi

say "cargo build"
# What does not compile is told and counted below.
cargo test --profile ci --locked --workspace --no-run
wait

say "hipRTC"
if [ -n "${GPTOSS_JIT_HIPRTC:-}" ]; then
    echo "GPTOSS_JIT_HIPRTC=$GPTOSS_JIT_HIPRTC"
else
    fetched hiprtc GPTOSS_JIT_HIPRTC "$PWD/target/hiprtc" "there is no hipRTC here: no GPU kernel will be compiled by the tests below"
fi

say "LLVM's tools"
if [ -n "${GPTOSS_JIT_LLVM:-}" ]; then
    echo "GPTOSS_JIT_LLVM=$GPTOSS_JIT_LLVM"
else
    fetched llvm GPTOSS_JIT_LLVM "$PWD/target/llvm" "LLVM's tools cannot be fetched here: what is not on PATH is not tested below"
fi

say "SmolLM2"
if [ -n "${GPTOSS_JIT_SMOLLM2:-}" ]; then
    echo "GPTOSS_JIT_SMOLLM2=$GPTOSS_JIT_SMOLLM2"
else
    fetched smollm2 GPTOSS_JIT_SMOLLM2 "$models/SmolLM2-135M-Instruct.Q4_1.gguf" "SmolLM2 cannot be fetched here: no published model will be run by the tests below"
fi

# OpenAI's own clients against the server, where Python's and npm's packages can be had: beside the tests, since most of
# it is waiting for packages.
GPTOSS_JIT_BINARY="$PWD/target/ci/gptoss-jit" tests/clients/quick.sh >"$scratch/clients" 2>&1 &
clients=$!

say "cargo test"
{
    cargo test --profile ci --locked --workspace --no-fail-fast 2>&1
    echo $? >"$scratch/status"
} | tee "$scratch/log"
status=$(cat "$scratch/status")
# A test that cannot do its work here says so on stderr, in a line `skipped: why`, and then counts as passed for cargo.
said=$(grep -cE '(^|\.\.\. )skipped: ' "$scratch/log")
counts=$(awk '/^test result: / {
    for (i = 2; i <= NF; i++) {
        if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1); if ($i == "ignored;") s += $(i - 1)
    }
} END { print p + 0, f + 0, s + 0 }' "$scratch/log")
# shellcheck disable=SC2086 # three numbers
set -- $counts
passed=$((passed + $1 - said)) failed=$((failed + $2)) skipped=$((skipped + $3 + said))
# A crate that does not compile, or a test binary that died, has no result to count.
if [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then
    echo "FAILED: cargo test, exit code $status" && count 1
elif [ "$1" -eq 0 ]; then
    echo "FAILED: no test ran" && count 1
fi

say "tests/clients/quick.sh"
wait "$clients"
clients=
cat "$scratch/clients"
counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$scratch/clients")
# shellcheck disable=SC2086 # three numbers
set -- $counts
if [ $# -eq 3 ]; then
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
else
    echo "FAILED: tests/clients/quick.sh did not count" && count 1
fi

# AMD's own HIP runtime on an emulated GPU, where a checkout of tinygrad and Debian's packages can be had.
say "tests/emulated-gpu/quick.py"
if command -v python3 >/dev/null; then
    python3 tests/emulated-gpu/quick.py target/ci/gptoss-jit 2>&1 | tee "$scratch/emulated"
    counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$scratch/emulated")
    # shellcheck disable=SC2086 # three numbers
    set -- $counts
    if [ $# -eq 3 ]; then
        passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    else
        echo "FAILED: tests/emulated-gpu/quick.py did not count" && count 1
    fi
else
    skip "tests/emulated-gpu needs python3"
fi

say "cargo fmt"
if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --all -- --check
    count $?
else
    skip "cargo fmt is not installed (rustup component add rustfmt)"
fi

say "cargo clippy"
if [ "$lints" = yes ]; then
    # Nothing is left to compile: cargo says once more what there was to say.
    cargo test --profile ci --locked --workspace --no-run 2>&1 | tee "$scratch/lints"
    ! grep -qE '^(warning|error)' "$scratch/lints" && grep -q '^ *Finished' "$scratch/lints"
    count $?
else
    skip "cargo clippy is not installed (rustup component add clippy)"
fi

say "summary"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
