#!/bin/sh
# Builds the wheel `gptoss-jit`: the program as a script, and the module `gptoss_jit`, which has the program compile its
# kernels. One wheel of both, because neither is of use in another version than the other. maturin makes a wheel of one
# crate; here cargo builds two at once, and `wheel` packs them.
#
#   packaging/wheel.sh [BUNDLE...]     BUNDLE: kernels compiled ahead, to go with the program
#
# Prints the wheel's path.
set -eu
. "$(dirname "$0")/tools.sh"

need_program
tree=$work/wheel/gptoss_jit-$version
info=$tree/gptoss_jit-$version.dist-info
data=$tree/gptoss_jit-$version.data
rm -rf "$work/wheel"
mkdir -p "$tree/gptoss_jit" "$info/licenses" "$data/scripts" "$dist"

cp "$root"/python/gptoss_jit/*.py "$root"/python/gptoss_jit/*.pyi "$root/python/gptoss_jit/py.typed" "$tree/gptoss_jit/"
cp "$built/libgptoss_jit_python.so" "$tree/gptoss_jit/_engine.abi3.so"
cp "$built/gptoss-jit" "$data/scripts/gptoss-jit"
chmod 755 "$data/scripts/gptoss-jit" "$tree/gptoss_jit/_engine.abi3.so"
cp "$root"/LICENSE* "$info/licenses/"
[ $# -eq 0 ] || { mkdir -p "$data/data/share/gptoss-jit/bundles" && cp "$@" "$data/data/share/gptoss-jit/bundles/"; }
sed "s/@VERSION@/$version/" "$root/packaging/METADATA.in" >"$info/METADATA"
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: gptoss-jit
Root-Is-Purelib: false
Tag: cp310-abi3-manylinux_2_28_x86_64
END

rm -f "$dist"/gptoss_jit-*.whl
wheel pack --dest-dir "$dist" "$tree" >&2
made=$(ls "$dist/gptoss_jit-$version"-*.whl)
# What it says of itself, looked at by another: which glibc its files need.
auditwheel show "$made" >"$work/auditwheel.log" 2>&1 || { cat "$work/auditwheel.log" >&2; fail "auditwheel refuses $made"; }
tr '\n' ' ' <"$work/auditwheel.log" | grep -q 'constrains the platform tag to "manylinux_2_\(1[0-9]\|2[0-8]\|[0-9]\)_x86_64"\|consistent with the following platform tag: *"manylinux_2_\(1[0-9]\|2[0-8]\|[0-9]\)_x86_64"' || {
    cat "$work/auditwheel.log" >&2
    fail "$made is not manylinux_2_28"
}
say "$made: $(wc -c <"$made") bytes"
echo "$made"
