#!/bin/sh
# Unpacks Debian packages and everything that they are linked with, down to libc and its loader, into a folder. Needs no
# root and installs nothing. tests/fetch-hiprtc.sh and tests/fetch-llvm.sh call it.
#
#   tests/fetch-debian.sh DIR PROOF PACKAGE...     PROOF: a file of the packages, below DIR, that must be there then
#
# FETCH_DEBIAN_SUITES="sid experimental" takes them from other suites than forky, and from the last where it can.
#
# Exit codes: 0 ready, 1 failed, 2 wrong usage, 3 not available on this machine (no apt, no Debian
# archive among its sources, another processor, no network). A second run does nothing; a run that
# was cut short is taken up again. Downloads and apt's own state stay in DIR/.apt.
set -eu

suite=${FETCH_DEBIAN_SUITES:-forky}

say() { printf 'fetch-debian: %s\n' "$*" >&2; }
unavailable() { say "not available here: $*"; exit 3; }

if [ $# -lt 3 ] || [ -z "$1" ]; then
    echo "usage: $0 DIR PROOF PACKAGE..." >&2
    exit 2
fi
mkdir -p "$1"
dir=$(cd "$1" && pwd -P)
proof=$dir/$2
shift 2
packages=$*
stamp=$dir/.complete
wanted="$suite: $packages"
case $dir in *[[:space:]\"]*) say "apt cannot work in a folder with blanks or quotes in its name: $dir"; exit 1 ;; esac

is_ready() { [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$wanted" ] && [ -e "$proof" ]; }

if is_ready; then exit 0; fi

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || unavailable "the packages are for Linux on x86-64, this is $(uname -s) on $(uname -m)"
for tool in apt-get apt-config dpkg-deb awk; do
    command -v "$tool" >/dev/null || unavailable "no \`$tool\` (the packages are Debian's)"
done

# Two runs at once would write the same files; the second waits and finds the work done.
if command -v flock >/dev/null; then
    exec 9>"$dir/.lock"
    flock 9
    if is_ready; then exit 0; fi
fi

# ---- which archive: the machine's own, so that mirrors, proxies and keys are the ones already trusted ----

# One line per source that could be Debian's main archive: URI, a tab, its keyring (may be empty).
# Reads one-line files and deb822 files. What tells Debian from its derivatives is the suite's name.
archives() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk '
        $1 == "deb" {
            key = ""; i = 2
            if ($i ~ /^\[/) {
                do { option = $i; gsub(/[][]/, "", option); if (option ~ /^signed-by=/) key = substr(option, 11) } while ($(i++) !~ /\]$/ && i <= NF)
            }
            main = 0
            for (c = i + 2; c <= NF; c++) if ($c == "main") main = 1
            if (main) print $i "\t" key "\t" $(i + 1)
        }' | debian_only
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -r "$file" ] || continue
        awk '
            function finish(   n, m, i, j, uris, names) {
                if (types ~ /(^| )deb( |$)/ && components ~ /(^| )main( |$)/ && tolower(enabled) != "no") {
                    n = split(uri, uris, " "); m = split(suites, names, " ")
                    for (i = 1; i <= n; i++) for (j = 1; j <= m; j++) print uris[i] "\t" key "\t" names[j]
                }
                types = uri = suites = components = key = enabled = field = ""
            }
            /^#/ { next }
            /^[ \t]*$/ { finish(); next }
            /^[^ \t]/ { field = tolower($0); sub(/:.*/, "", field); value = $0; sub(/^[^:]*:[ \t]*/, "", value) }
            /^[ \t]/ { value = $0; sub(/^[ \t]+/, " ", value) }
            field == "types" { types = types value }
            field == "uris" { uri = uri value }
            field == "suites" { suites = suites value }
            field == "components" { components = components value }
            field == "enabled" { enabled = enabled value }
            field == "signed-by" && value ~ /^\// { key = value }  # a key pasted into the file is left out
            END { finish() }' "$file"
    done | debian_only
}

debian_only() {
    awk -F '\t' '$3 ~ /^(oldstable|stable|testing|unstable|sid|buster|bullseye|bookworm|trixie|forky|duke)$/ && !seen[$1]++ { print $1 "\t" $2 }'
}

archive=$(archives | head -n 1)
[ -n "$archive" ] || unavailable "no Debian archive among this machine's package sources"
uri=$(printf '%s' "$archive" | cut -f 1)
keyring=$(printf '%s' "$archive" | cut -f 2)

# ---- a private apt: its own sources, lists, cache, and a machine on which nothing is installed ----

apt=$dir/.apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/none"
: >"$apt/status"
{
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\n' "$uri" "$suite"
    [ -z "$keyring" ] || printf 'Signed-By: %s\n' "$keyring"
} >"$apt/debian.sources"

# The machine's settings are not read (their hooks would touch the machine), but for how to reach the archive.
{
    apt-config dump | grep -E '^Acquire::(http|https|ftp|Check-|ForceIPv|Retries)' || true
    cat <<CONF
Dir::Etc::Main "$apt/none/apt.conf";
Dir::Etc::Parts "$apt/none";
Dir::Etc::SourceList "$apt/debian.sources";
Dir::Etc::SourceParts "$apt/none";
Dir::Etc::Preferences "$apt/none/preferences";
Dir::Etc::PreferencesParts "$apt/none";
Dir::State "$apt";
Dir::State::Lists "$apt/lists";
Dir::State::Status "$apt/status";
Dir::State::Extended_States "$apt/extended_states";
Dir::Cache "$apt";
Dir::Cache::Archives "$apt/archives";
Dir::Log "$apt";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Get::List-Cleanup "false";
CONF
} >"$apt/apt.conf"
export APT_CONFIG="$apt/apt.conf" LC_ALL=C DEBIAN_FRONTEND=noninteractive

say "reading the package list of Debian $suite"
# `update` succeeds with warnings when the archive cannot be reached, so what counts is the list itself.
apt-get -q update >"$apt/update.log" 2>&1 || true
apt-cache show "${packages%% *}" >/dev/null 2>&1 || {
    tail -n 5 "$apt/update.log" >&2
    unavailable "could not read the package list of Debian $suite (see $apt/update.log)"
}

say "downloading $packages and what they need"
# shellcheck disable=SC2086 # the names are words
apt-get -q -y -t "${suite##* }" --download-only install $packages >"$apt/download.log" 2>&1 || {
    tail -n 5 "$apt/download.log" >&2
    unavailable "could not download the packages; run again to go on (see $apt/download.log)"
}

# Exactly what the resolver chose: an older download of the same package may lie beside it.
# shellcheck disable=SC2086
chosen=$(apt-get -q -y -t "${suite##* }" --simulate install $packages | awk '$1 == "Inst" { gsub(/[(]/, "", $3); gsub(/:/, "%3a", $3); print $2 "_" $3 }')
[ -n "$chosen" ] || { say "apt resolved no packages"; exit 1; }

say "unpacking $(printf '%s\n' "$chosen" | wc -l) packages"
for name in $chosen; do
    file=$(ls "$apt/archives/$name"_*.deb) || { say "missing download: $name"; exit 1; }
    dpkg-deb -x "$file" "$dir" || {
        rm -f "$file"
        say "the download was damaged and is removed; run again: $file"
        exit 1
    }
done
[ -e "$proof" ] || { say "the packages hold no $proof"; exit 1; }

{ echo "$wanted"; printf '%s\n' "$chosen"; } >"$stamp.part"
mv "$stamp.part" "$stamp"
say "ready in $dir"
