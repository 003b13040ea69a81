#!/bin/sh
# Tunes for AMD GPUs that are not there, in a clean Debian 12 with that system's LLVM 14 on PATH: first with the hipRTC of
# tests/fetch-hiprtc.sh alone, where instructions are counted and a note says so, then with tests/fetch-llvm.sh too.
#
#   tests/packages/tune.sh PROGRAM [TUNE-ARGUMENT...]      for example --most 2: fewer kernels are tried
#
# The last line counts: `N passed, N failed, N skipped`. Exit codes: 0 passed, 1 failed, 3 there is no clean system.
program=$(realpath "${1:?expected a program: $0 PROGRAM [TUNE-ARGUMENT...]}") || exit 1
shift
[ -x "$program" ] || { echo "$program is no program: build it first" >&2; exit 1; }
. "$(dirname "$0")/root.sh"

clean_system "tuning"
inside() { chroot "$root" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
mkdir -p "$root/usr/local/bin" "$root/src/tests" "$root/etc/apt/apt.conf.d"
cp "$program" "$root/usr/local/bin/gptoss-jit"
cp tests/fetch-*.sh "$root/src/tests/"
# How this machine reaches the archive.
apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries)' >"$root/etc/apt/apt.conf.d/99-as-outside"
{ inside apt-get -q update && inside apt-get -q -y --no-install-recommends install llvm; } >"$root/said" 2>&1 \
    || unavailable "tuning" "LLVM 14 could not be installed: $(tail -n 2 "$root/said")"
inside llvm-mca --version 2>&1 | grep -q 'version 14'
count $? "llvm-mca on PATH is expected to be of LLVM 14"
inside /src/tests/fetch-hiprtc.sh /src/hiprtc >"$root/said" 2>&1 || unavailable "tuning" "$(tail -n 2 "$root/said")"

# $1: the arch, $2: a phrase of what is said, or `!` and one that is not, then variables and arguments.
tune() {
    arch=$1 phrase=$2
    shift 2
    rm -rf "$root/tuning"
    inside "$@" >"$root/said" 2>&1
    count $? "tune --arch $arch: $(tail -n 5 "$root/said")"
    case $phrase in
        !*) ! grep -q "${phrase#!}" "$root/said" ;;
        *) [ "$(grep -c "$phrase" "$root/said")" = 1 ] ;;
    esac
    count $? "tune --arch $arch: \`$phrase\` is expected in: $(head -n 5 "$root/said")"
    ! grep -qi 'bug report\|llvm-objdump' "$root/said"
    count $? "tune --arch $arch ran a tool of LLVM 14: $(grep -i 'bug report\|llvm-objdump' "$root/said")"
    rows=$(grep -c '^\[\[rows\]\]' "$root/tuning/$arch.toml" 2>/dev/null)
    echo "tune --arch $arch: ${rows:-0} rows; $(grep -c ' tried' "$root/said") problems"
}
for arch in gfx1100 gfx942; do
    tune $arch 'times are predicted by counting instructions' env GPTOSS_JIT_HIPRTC=/src/hiprtc gptoss-jit tune --arch $arch --tuning /tuning "$@"
done
inside /src/tests/fetch-llvm.sh /src/llvm >"$root/said" 2>&1 || unavailable "tuning with LLVM 22" "$(tail -n 2 "$root/said")"
tune gfx1100 '!counting instructions' env GPTOSS_JIT_HIPRTC=/src/hiprtc GPTOSS_JIT_LLVM=/src/llvm gptoss-jit tune --arch gfx1100 --tuning /tuning --op rmsnorm --tokens 1 --write
finish
