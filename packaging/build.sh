#!/bin/sh
# Builds all packages from a checkout: the wheel, wheels of kernels, the Debian package, and their checksums.
#
#   packaging/build.sh             into target/packaging/dist
#
# It takes Rust, Python with venv, dpkg-deb, and network for the tools of packaging/tools.txt and for crates.
set -eu
. "$(dirname "$0")/tools.sh"

rm -rf "$dist"
mkdir -p "$dist"
"$root/packaging/wheel.sh" >/dev/null
"$root/packaging/deb.sh" >/dev/null
(cd "$dist" && LC_ALL=C sha256sum -- *.whl *.deb >SHA256SUMS)
cat "$dist/SHA256SUMS"
