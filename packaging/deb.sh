#!/bin/sh
# Builds the Debian package `gptoss-jit`: the program, manual pages, completions and a systemd unit, which is installed
# and not enabled.
#
#   packaging/deb.sh [BUNDLE...]       BUNDLE: kernels compiled ahead
#
# Prints the package's path.
set -eu
. "$(dirname "$0")/tools.sh"

need_program
command -v dpkg-deb >/dev/null || fail "there is no \`dpkg-deb\`: Debian's package dpkg has it"
tree=$work/deb
rm -rf "$tree"
umask 022
mkdir -p "$tree/DEBIAN" "$dist"
at() { mkdir -p "$tree/$1" && printf %s "$tree/$1"; }

install -m 755 "$built/gptoss-jit" "$(at usr/bin)/gptoss-jit"
"$built/gptoss-jit" man "$(at usr/share/man/man1)" >&2
gzip -9n "$tree"/usr/share/man/man1/*
completion() { "$built/gptoss-jit" completions "$1" >"$(at "$2")/$3"; }
completion bash usr/share/bash-completion/completions gptoss-jit
completion zsh usr/share/zsh/vendor-completions _gptoss-jit
completion fish usr/share/fish/vendor_completions.d gptoss-jit.fish
sed -e 's|/usr/local/bin/|/usr/bin/|' -e 's|Put it into /etc/systemd/system, then|To begin:|' \
    -e 's|systemctl daemon-reload && systemctl enable|systemctl enable|' \
    "$root/examples/serve/gptoss-jit.service" >"$(at usr/lib/systemd/system)/gptoss-jit.service"
[ $# -eq 0 ] || install -m 644 "$@" "$(at usr/share/gptoss-jit/bundles)/"

documents=$(at usr/share/doc/gptoss-jit)
cp "$root/README.md" "$documents/"
{ cat "$root/LICENSE"; printf '\n'; cat "$root/LICENSE-MIT"; printf '\n'; cat "$root/LICENSE-APACHE"; } >"$documents/copyright"
gzip -9nc "$root/CHANGELOG.md" >"$documents/changelog.gz"

cat >"$tree/DEBIAN/control" <<END
Package: gptoss-jit
Version: $version
Section: science
Priority: optional
Architecture: amd64
Maintainer: gptoss-jit <https://github.com/gptoss-jit/gptoss-jit/issues>
Homepage: https://github.com/gptoss-jit/gptoss-jit
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: libc6 (>= $glibc), libgcc-s1 | libgcc1
Recommends: gcc | clang
Description: gpt-oss models on GPUs and processors
 Runs OpenAI's gpt-oss and other models with kernels that are templates: they are
 rendered for the chip that is present, compiled once, and kept in a cache. Kernels
 for processors are compiled by a C compiler, those for GPUs by the vendor's library.
 .
 Has a command line, a server that speaks OpenAI's API, and a systemd unit for it.
END
(cd "$tree" && find usr -type f -printf '%P\n' | LC_ALL=C sort | sed 's|^|usr/|' | xargs md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
made=$dist/gptoss-jit_${version}_amd64.deb
dpkg-deb --root-owner-group -Zxz --build "$tree" "$made" >&2
say "$made: $(wc -c <"$made") bytes"
echo "$made"
