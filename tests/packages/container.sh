#!/bin/sh
# Does what examples/serve/Containerfile says of the image that is run, in a clean Debian 12 and without a container
# engine: its last stage's RUN, COPY, ENV, USER and ENTRYPOINT. The program of its first stage is the one that
# packaging/build.sh made. The server then answers a request.
#
#   tests/packages/container.sh
#
# The last line counts: `N passed, N failed, N skipped`. Exit codes: 0 passed, 1 failed, 3 there is no clean system.
. "$(dirname "$0")/root.sh"

program=target/packaging/built/gptoss-jit
[ -x "$program" ] || { echo "there is no $program: packaging/build.sh makes it" >&2; exit 1; }
clean_system "the container"

# The last stage: a line each, continued lines joined.
stage=$(sed -e ':more' -e '/\\$/{N;s/\\\n */ /;bmore' -e '}' examples/serve/Containerfile | awk '/^FROM/ { text = "" } { text = text "\n" $0 } END { print text }' | grep -v '^#')
printf '%s\n' "$stage" | grep -q '^FROM .*/debian:bookworm-slim$'
count $? "the last stage is expected to begin with Debian 12"
user=root entry='' environment=''
unknown=0
while IFS= read -r line; do
    words=${line#* }
    case $line in
        'FROM '* | 'VOLUME '* | 'EXPOSE '* | '') ;;
        'RUN '*) chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -ec "$words" </dev/null >>"$root/said" 2>&1; count $? "RUN $words: $(tail -n 3 "$root/said")" ;;
        'COPY --from=build /src/target/release/gptoss-jit '*) cp "$program" "$root${line##* }"; count $? "$line" ;;
        'ENV '*) environment="$environment $words" ;;
        'USER '*) user=$words ;;
        'ENTRYPOINT '*) entry=$(printf %s "$words" | tr -d '[]",') ;;
        *) unknown=$((unknown + 1)); echo "not understood: $line" ;;
    esac
done <<END
$stage
END
count $unknown "steps of the Containerfile that this test does not know"

# On another port than the image's, which may be in use here: there is no network of its own.
port=$((20000 + $$ % 20000))
# shellcheck disable=SC2086 # words
chroot --userspec="$user" "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/ $environment $entry --port "$port" >"$root/log" 2>&1 &
server=$!
ask() { python3 - "$@" <<'END'
import json, sys, time, urllib.request
base = f"http://127.0.0.1:{sys.argv[1]}"
body = json.dumps({"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}).encode()
for attempt in range(240):
    try:
        urllib.request.urlopen(base + "/health", timeout=5)
        break
    except OSError:
        time.sleep(0.5)
asked = urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(asked, timeout=120))["choices"][0]["text"])
END
}
text=$(ask "$port")
case $text in ", there was a little girl named Lily."*) count 0 ;; *) count 1 "the server said \`$text\`: $(tail -n 3 "$root/log")" ;; esac
owner=$(stat -c %u "/proc/$server" 2>/dev/null)
[ "$owner" = 10001 ]
count $? "the server is run by user $owner, expected 10001"
finish
