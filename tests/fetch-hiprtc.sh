#!/bin/sh
# Fetches a hipRTC that needs no GPU, no ROCm and no root, and installs nothing: the Debian packages
# of it and of everything it is linked with, unpacked into a folder by tests/fetch-debian.sh.
#
#   tests/fetch-hiprtc.sh DIR      prints DIR/usr/lib/x86_64-linux-gnu; point GPTOSS_JIT_HIPRTC at DIR
#
# Exit codes: those of tests/fetch-debian.sh (3: not available on this machine).
set -eu

if [ $# -ne 1 ] || [ -z "$1" ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
libraries=usr/lib/x86_64-linux-gnu
"$(dirname "$0")/fetch-debian.sh" "$1" $libraries/libhiprtc.so.6 libhiprtc6 libhiprtc-builtins6 libamd-comgr3
echo "$(cd "$1" && pwd -P)/$libraries"
