#!/bin/sh
# Installs the wheel of packaging/build.sh into a clean Debian without compilers, and has the program and the module speak.
# With kernels in the wheel they must speak there, and compile nothing; without, the error must say that a C compiler is
# missing, and they must speak when there is one. Says how long it took.
#
#   tests/packages/wheel.sh
#
# The last line counts: `N passed, N failed, N skipped`. Exit codes: 0 passed, 1 failed, 3 there is no clean system.
. "$(dirname "$0")/root.sh"

wheel=$(ls "$dist"/gptoss_jit-*.whl 2>/dev/null) || { echo "there is no wheel in $dist: packaging/build.sh makes it" >&2; exit 1; }
most=$((30 * 1000 * 1000)) # 25 are wanted; two programs of 27 and 14 MB of instructions take 29
[ "$(wc -c <"$wheel")" -le $most ]
count $? "$wheel has $(wc -c <"$wheel") bytes, expected $most at most"

clean_system "the wheel"
mkdir "$root/dist" && cp "$dist"/*.whl "$root/dist/"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

inside python3 -m venv /venv
begin=$(milliseconds)
inside /venv/bin/pip install --quiet --no-index --find-links /dist gptoss-jit
count $? "pip install"
installed=$(milliseconds)

expected="Once upon a time, there was a little girl named Lily. She had a red kite."
# Both speak: $1 is what else `run` takes. What it compiled, if anything, the module finds in the cache.
speak() {
    begin_of_run=$(milliseconds)
    text=$(inside /venv/bin/gptoss-jit run $1 --device cpu -T 0 -i "Once upon a time" -n 24 2>"$root/said")
    count $? "gptoss-jit run: $(cat "$root/said")"
    took=$(($(milliseconds) - begin_of_run))
    case $text in "$expected"*) count 0 ;; *) count 1 "expected \`$expected\`, found \`$text\`" ;; esac
    printf 'pip install took %s ms, the first text %s ms: %s\n' $((installed - begin)) $took "$(tail -n 1 "$root/said")"
    text=$(inside /venv/bin/python -c "
import gptoss_jit
model = gptoss_jit.load(device='cpu')
found, compiled = model.kernels
assert found > 0 and compiled == 0, model.kernels
print('Once upon a time' + ''.join(model.generate('Once upon a time', max_new_tokens=40)))" 2>"$root/said")
    count $? "import gptoss_jit: $(cat "$root/said")"
    case $text in "$expected"*) count 0 ;; *) count 1 "the module: expected \`$expected\`, found \`$text\`" ;; esac
}

if python3 -m zipfile --list "$wheel" | grep -q share/gptoss-jit/bundles/; then
    speak --no-compile
else
    skipped=$((skipped + 1))
    echo "skipped: text without a compiler: the wheel has no kernels"
    inside /venv/bin/gptoss-jit run --device cpu -T 0 -i "Once upon a time" -n 24 >/dev/null 2>"$root/said"
    [ $? -eq 1 ] && grep -q "hint: .*C compiler\|hint: .*gcc" "$root/said"
    count $? "expected an error that has a C compiler installed, found: $(cat "$root/said")"
    inside sh -c 'apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev' >"$root/said" 2>&1
    count $? "apt-get install gcc: $(tail -n 3 "$root/said")"
    speak ''
fi
finish
