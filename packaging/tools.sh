# What the scripts here have in common; read with `.`. Tools of Python's registry are installed once, into
# target/packaging/tools: their versions are fixed, so that two builds of a commit differ in nothing.

root=$(cd "$(dirname "$0")/.." && pwd -P)
work=$root/target/packaging
dist=$work/dist
target=x86_64-unknown-linux-gnu
# AlmaLinux 8, Debian 10 and everything newer: manylinux_2_28.
glibc=2.28
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
# What files in packages are dated with.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

say() { printf '==> %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# $python and, on PATH, `cargo-zigbuild`, `wheel` and `auditwheel`.
need_tools() {
    python=$work/tools/bin/python
    if ! cmp -s "$root/packaging/tools.txt" "$work/tools/complete"; then
        say "installing tools into $work/tools"
        rm -rf "$work/tools"
        python3 -m venv "$work/tools"
        "$python" -m pip install --quiet --disable-pip-version-check -r "$root/packaging/tools.txt"
        cp "$root/packaging/tools.txt" "$work/tools/complete" # last: it says which are there
    fi
    PATH=$work/tools/bin:$PATH
    export PATH
}

# $built: the folder with `gptoss-jit` and the module's `libgptoss_jit_python.so`, for an old glibc.
need_program() {
    need_tools
    say "building gptoss-jit $version for $target, glibc $glibc"
    # Together: what both need is compiled once.
    (cd "$root" && cargo zigbuild --profile dist --locked --target "$target.$glibc" -p gptoss-jit -p gptoss-jit-python)
    built=$work/built
    mkdir -p "$built"
    (cd "${CARGO_TARGET_DIR:-$root/target}/$target/dist" && cp gptoss-jit libgptoss_jit_python.so "$built/")
}
