#!/bin/sh
# Installs the wheel of packaging/build.sh into a clean Debian without compilers, and has the program and the module speak
# with the kernels that the wheel brings. Where these do not suffice, the error must say that a C compiler is missing.
# Wheels of kernels that are there too are installed and must be found. Says how long it took.
#
#   tests/packages/wheel.sh
#
# The last line counts: `N passed, N failed, N skipped`. Exit codes: 0 passed, 1 failed, 3 there is no clean system.
. "$(dirname "$0")/root.sh"

wheel=$(ls "$dist"/gptoss_jit-*.whl 2>/dev/null) || { echo "there is no wheel in $dist: packaging/build.sh makes it" >&2; exit 1; }
most=$((25 * 1000 * 1000))
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
begin_of_run=$(milliseconds)
text=$(inside /venv/bin/gptoss-jit run --no-compile --device cpu -T 0 -i "Once upon a time" -n 24 2>"$root/said")
count $? "gptoss-jit run: $(cat "$root/said")"
now=$(milliseconds)
case $text in "$expected"*) count 0 ;; *) count 1 "expected \`$expected\`, found \`$text\`" ;; esac
printf 'pip install took %s ms, the first text %s ms, %s ms after the install began: %s\n' $((installed - begin)) \
    $((now - begin_of_run)) $((now - begin)) "$(tail -n 1 "$root/said")"
text=$(inside /venv/bin/python -c "
import gptoss_jit
model = gptoss_jit.load(device='cpu')
found, compiled = model.kernels
assert found > 0 and compiled == 0, model.kernels
print('Once upon a time' + ''.join(model.generate('Once upon a time', max_new_tokens=40)))" 2>"$root/said")
count $? "import gptoss_jit: $(cat "$root/said")"
case $text in "$expected"*) count 0 ;; *) count 1 "the module: expected \`$expected\`, found \`$text\`" ;; esac

# Keys and values of 8 bits are not what the wheel's kernels are for.
inside /venv/bin/gptoss-jit run --device cpu --kv-dtype int8 -i "Once upon a time" -n 4 >/dev/null 2>"$root/said"
[ $? -eq 1 ] && grep -q "hint: .*C compiler\|hint: .*gcc" "$root/said"
count $? "expected an error that has a C compiler installed, found: $(cat "$root/said")"

for kernels in "$dist"/gptoss_jit_kernels_*.whl; do
    [ -e "$kernels" ] || continue
    inside /venv/bin/pip install --quiet --no-index --find-links /dist "/dist/${kernels##*/}"
    count $? "pip install ${kernels##*/}"
    bundle=$(python3 -m zipfile --list "$kernels" | sed -n 's|.*/share/gptoss-jit/bundles/\([^ ]*\) .*|\1|p')
    inside /venv/bin/gptoss-jit bundle ls 2>&1 | grep -q "/venv/share/gptoss-jit/bundles/$bundle"
    count $? "\`bundle ls\` does not have $bundle of ${kernels##*/}"
done
finish
