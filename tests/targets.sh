#!/bin/sh
# Compiles the program for other systems as far as `cargo check` does: nothing is linked, nothing is run. Zig compiles
# the C of a dependency (zstd), whatever the system.
#
#   tests/targets.sh [TARGET...]      without a name all of them
#
# It takes rustup, Python with venv, and network. The last line counts: `N passed, N failed`.
set -eu
. "$(dirname "$0")/../packaging/tools.sh"

[ $# -gt 0 ] || set -- aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-gnu
need_tools
passed=0 failed=0
for target; do
    say "cargo check for $target"
    # The profile that optimises least: build scripts and macros are run, and for seconds only.
    if (cd "$root" && rustup target add "$target" && cargo-zigbuild check --profile ci --locked --target "$target" -p gptoss-jit); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $target"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
