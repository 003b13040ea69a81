#!/bin/sh
# A clean Debian 12 in a folder, without compilers: what packages are installed into by the tests beside this. It takes
# root and debootstrap, and keeps the fresh system in target/packaging/root, of which each test gets a copy.
#
#   tests/packages/root.sh DIR       makes DIR such a system
#
# Exit codes: 0 made, 1 failed, 3 not to be had here.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
cd "$(dirname "$0")/../.."
unavailable() { printf 'not to be had here: %s\n' "$*" >&2; exit 3; }

[ "$(id -u)" = 0 ] || unavailable "a system of its own takes root"
command -v debootstrap >/dev/null || unavailable "there is no \`debootstrap\`"
fresh=target/packaging/root
if ! [ -e "$fresh.complete" ]; then
    rm -rf "$fresh"
    mkdir -p "$fresh"
    # Debian's archive: the one that this machine uses, if it is a Debian.
    mirror=$(sed -n 's|^\(deb\|URIs:\).* \(https\?://[^ ]*/debian\)/\? *.*|\2|p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$fresh" \
        "${mirror:-http://deb.debian.org/debian}" >"$fresh.log" 2>&1 || { tail -n 3 "$fresh.log" >&2; unavailable "debootstrap failed (see $fresh.log)"; }
    touch "$fresh.complete"
fi
rm -rf "$1"
mkdir -p "$1"
cp -a "$fresh/." "$1/"
for tool in cc gcc clang c++ tcc; do
    if chroot "$1" sh -c "command -v $tool" >/dev/null; then echo "the clean system has \`$tool\`" >&2; exit 1; fi
done
