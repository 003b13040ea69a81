#!/bin/sh
# Installs the Debian package of packaging/build.sh into a clean Debian, and looks for all that it brings.
#
#   tests/packages/deb.sh
#
# The last line counts: `N passed, N failed, N skipped`. Exit codes: 0 passed, 1 failed, 3 there is no clean system.
. "$(dirname "$0")/root.sh"

deb=$(ls "$dist"/gptoss-jit_*.deb 2>/dev/null) || { echo "there is no package in $dist: packaging/build.sh makes it" >&2; exit 1; }
clean_system "the package"
cp "$deb" "$root/package.deb"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"; }

inside dpkg --install /package.deb >"$root/said" 2>&1
count $? "dpkg --install: $(cat "$root/said")"
said=$(inside gptoss-jit --version)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[ "$said" = "gptoss-jit $version" ]
count $? "--version: expected gptoss-jit $version, found $said"
for file in man/man1/gptoss-jit.1.gz man/man1/gptoss-jit-run.1.gz bash-completion/completions/gptoss-jit \
    zsh/vendor-completions/_gptoss-jit fish/vendor_completions.d/gptoss-jit.fish doc/gptoss-jit/copyright; do
    [ -s "$root/usr/share/$file" ]
    count $? "/usr/share/$file is missing or empty"
done
# The completions are bash's own language, and complete a command.
found=$(inside bash -c '. /usr/share/bash-completion/completions/gptoss-jit; COMP_WORDS=(gptoss-jit insp) COMP_CWORD=1; set -- $(complete -p gptoss-jit); while [ "$1" != -F ]; do shift; done; $2 gptoss-jit insp gptoss-jit; echo "${COMPREPLY[*]}"')
[ "$found" = inspect ]
count $? "bash completes \`insp\` as \`$found\`, expected \`inspect\`"
unit=$root/usr/lib/systemd/system/gptoss-jit.service
started=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")
[ -x "$root$started" ]
count $? "the unit starts \`$started\`, which is not there"
if command -v systemd-analyze >/dev/null; then
    systemd-analyze verify --root="$root" gptoss-jit.service >"$root/said" 2>&1
    ! grep -i "gptoss-jit.service.*\(unknown\|invalid\|failed to parse\)" "$root/said"
    count $? "systemd-analyze verify"
else
    skipped=$((skipped + 1)) && echo "skipped: systemd-analyze is not here"
fi
# There is no compiler: the kernels are those of the package.
text=$(inside gptoss-jit run --no-compile --device cpu -T 0 -i "Once upon a time" -n 24 2>"$root/said")
case $text in "Once upon a time, there was a little girl named Lily."*) count 0 ;; *) count 1 "found \`$text\`: $(cat "$root/said")" ;; esac
inside dpkg --purge gptoss-jit >"$root/said" 2>&1 && [ ! -e "$root/usr/bin/gptoss-jit" ]
count $? "dpkg --purge: $(cat "$root/said")"
finish
