#!/bin/sh
# Fetches LLVM's tools (llvm-mca, llc), which need no root, and installs nothing: the
# Debian packages, unpacked into a folder by tests/fetch-debian.sh.
#
#   tests/fetch-llvm.sh DIR      prints DIR; point GPTOSS_JIT_LLVM at it
#
# Exit codes: those of tests/fetch-debian.sh (3: not available on this machine).
set -eu

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
"$(dirname "$0")/fetch-debian.sh" "$1" usr/lib/llvm-22/bin/llvm-mca llvm-22
cd "$1" && pwd -P
