#!/bin/sh
# Builds a wheel of kernels compiled ahead, `gptoss-jit-kernels-NAME`: bundles, put where the program of the same
# environment looks for them. It needs the program of the version that compiled them.
#
#   packaging/kernel-wheel.sh NAME BUNDLE...       packaging/kernel-wheel.sh gfx1100 gfx1100.tar.zst
#
# Prints the wheel's path.
set -eu
. "$(dirname "$0")/tools.sh"

[ $# -ge 2 ] || { echo "usage: $0 NAME BUNDLE..." >&2; exit 2; }
name=$1
shift
case $name in *[!a-z0-9-]* | '') fail "a name of lower-case letters, digits and hyphens was expected, found \`$name\`" ;; esac
for bundle; do [ -f "$bundle" ] || fail "there is no bundle \`$bundle\`"; done

need_tools
file=gptoss_jit_kernels_$(printf %s "$name" | tr - _)
tree=$work/kernel-wheel/$file-$version
info=$tree/$file-$version.dist-info
bundles=$tree/$file-$version.data/data/share/gptoss-jit/bundles
rm -rf "$work/kernel-wheel"
mkdir -p "$info/licenses" "$bundles" "$dist"
cp "$@" "$bundles/"
cp "$root"/LICENSE* "$info/licenses/"
cat >"$info/METADATA" <<END
Metadata-Version: 2.4
Name: gptoss-jit-kernels-$name
Version: $version
Summary: Kernels of gptoss-jit for $name, compiled ahead
License-Expression: MIT OR Apache-2.0
License-File: LICENSE
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Project-URL: Repository, https://github.com/gptoss-jit/gptoss-jit
Requires-Dist: gptoss-jit==$version
END
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: gptoss-jit
Root-Is-Purelib: true
Tag: py3-none-any
END
rm -f "$dist/$file"-*.whl
wheel pack --dest-dir "$dist" "$tree" >&2
made=$(ls "$dist/$file-$version"-*.whl)
say "$made: $(wc -c <"$made") bytes"
echo "$made"
