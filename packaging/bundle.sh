#!/bin/sh
# Builds the bundle of kernels for processors that the wheel and the Debian package bring: the tiny model and gpt-oss, on
# AVX2, AVX-512, and what is beyond it in Zen 4 and in Sapphire Rapids. It takes a C compiler that knows AMX (GCC 11).
#
#   packaging/bundle.sh
#
# Prints the bundle's path.
set -eu
. "$(dirname "$0")/tools.sh"

need_program
command -v "${CC:-cc}" >/dev/null || fail "there is no C compiler \`${CC:-cc}\`, which compiles kernels for processors"
made=$work/bundles/x86-64.tar.zst
mkdir -p "$work/bundles" "$work/config"
# What this user has (a cache, templates, families of models) is not in it.
env -u GPTOSS_JIT_TEMPLATES -u GPTOSS_JIT_BUNDLES -u GPTOSS_JIT_NO_COMPILE \
    XDG_CONFIG_HOME="$work/config" GPTOSS_JIT_CACHE="$work/kernels" \
    "$built/gptoss-jit" bundle --model tiny,gpt-oss-20b,gpt-oss-120b \
    --arch x86-64-v3,x86-64-v4,x86-64-v4+avx512bf16,x86-64-v4+amx_bf16+avx512bf16 -o "$made" >&2
say "$made: $(wc -c <"$made") bytes"
echo "$made"
