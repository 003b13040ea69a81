# What the tests here have in common; read with `.`. They count, and install what packaging/build.sh made into a clean
# Debian 12 without compilers. That takes root and debootstrap. The fresh system is kept in target/packaging/root, and
# each test gets a copy.
#
# A test that cannot have such a system says so, and exits with 3: neither passed nor failed.

set -u
cd "$(dirname "$0")/../.." || exit 1
dist=target/packaging/dist
passed=0 failed=0 skipped=0
root='' server=''
count() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); printf 'FAILED: %s\n' "$2"; fi; }
finish() { printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"; [ "$failed" -eq 0 ]; exit; }

# $1: what is tested there, $2: why there is no clean system.
unavailable() {
    printf 'skipped: %s: %s\n%s passed, %s failed, 1 skipped\n' "$1" "$2" "$passed" "$failed"
    [ "$failed" -eq 0 ] || exit 1
    exit 3
}

# Ends the server, and removes the system: never through what is still mounted there.
remove_system() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null
    umount "$root/proc" 2>/dev/null || umount --lazy "$root/proc" 2>/dev/null
    rm -rf --one-file-system "$root"
}

# $root: a clean system, until the test ends. $1: what is tested there.
clean_system() {
    [ "$(id -u)" = 0 ] || unavailable "$1" "it takes root"
    command -v debootstrap >/dev/null || unavailable "$1" "there is no \`debootstrap\`"
    fresh=target/packaging/root
    if ! [ -e "$fresh.complete" ]; then
        rm -rf --one-file-system "$fresh"
        mkdir -p "$fresh" || exit 1
        # Debian's archive: the one that this machine uses, if it is a Debian.
        mirror=$(sed -n 's#^\(deb\|URIs:\).* \(https\?://[^ ]*/debian\)/\? *.*#\2#p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
        debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$fresh" \
            "${mirror:-http://deb.debian.org/debian}" >"$fresh.log" 2>&1 || {
            tail -n 3 "$fresh.log" >&2
            unavailable "$1" "debootstrap failed (see $fresh.log)"
        }
        touch "$fresh.complete"
    fi
    root=$(mktemp -d) || exit 1
    trap remove_system EXIT
    trap 'exit 1' HUP INT TERM
    # A program there finds itself by its name in /proc.
    cp -a "$fresh/." "$root/" && cp /etc/resolv.conf "$root/etc/" && mount -t proc proc "$root/proc" || {
        echo "there is no clean system" >&2
        exit 1
    }
    for tool in cc gcc clang c++ tcc; do
        if chroot "$root" sh -c "command -v $tool" >/dev/null; then echo "the clean system has \`$tool\`" >&2; exit 1; fi
    done
}
