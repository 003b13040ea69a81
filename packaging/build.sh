#!/bin/sh
# Builds packages from a checkout: the wheel, the Debian package, both with kernels for processors, and their checksums.
# Wheels of kernels for GPUs are made of bundles by kernel-wheel.sh.
#
#   packaging/build.sh             into target/packaging/dist
#
# It takes Rust, a C compiler, Python with venv, dpkg-deb, and network for the tools of packaging/tools.txt and for crates.
set -eu
. "$(dirname "$0")/tools.sh"

rm -rf "$dist"
mkdir -p "$dist"
bundle=$("$root/packaging/bundle.sh")
"$root/packaging/wheel.sh" "$bundle" >/dev/null
"$root/packaging/deb.sh" "$bundle" >/dev/null
(cd "$dist" && LC_ALL=C sha256sum -- *.whl *.deb >SHA256SUMS)
cat "$dist/SHA256SUMS"
