#!/bin/sh
# Clients that others wrote, against `gptoss-jit serve`: with scripted answers (replay.jsonl) and with the built-in model.
#
#   tests/clients/run.sh [NAME...]      all of them without a name; docs/clients.md has a table of them
#
# The program is what GPTOSS_JIT_BINARY names, else the newest in target/. Packages come from PyPI and npm into
# target/clients (GPTOSS_JIT_CLIENTS names another folder), once. What is nobody's package is named by variables:
#
#   GPT_OSS      a checkout of openai/gpt-oss, for its compatibility test
#   LLAMA_CPP    a checkout of ggml-org/llama.cpp, or of what vendors it, for its server's tests
#   OPENAPI      openapi.json of openai/openai-openapi, for schemathesis
#   PROMETHEUS   the program, where it is not in PATH
#
# What cannot be had says `skipped: why` and ends with 3. Whatever else ends with an error has failed, though it may have
# skipped something before. The last line counts: `N passed, N failed, N skipped`. Fails if anything failed.
set -u
cd "$(dirname "$0")/../.." || exit 1
here=$PWD/tests/clients
home=${GPTOSS_JIT_CLIENTS:-$PWD/target/clients}
mkdir -p "$home" || exit 1
home=$(cd "$home" && pwd -P)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 npm_config_fund=false npm_config_audit=false npm_config_update_notifier=false
unset OPENAI_API_KEY OPENAI_BASE_URL GPTOSS_JIT_API_KEY
: >"$scratch/all"

# Packages of PyPI in an environment of their own; its python is then "$home/NAME/bin/python".
python_packages() {
    name=$1
    shift
    [ "$(cat "$home/$name/.complete" 2>/dev/null)" = "$*" ] && return
    command -v python3 >/dev/null || { echo "skipped: there is no python3"; return 3; }
    rm -rf "${home:?}/$name"
    python3 -m venv "$home/$name" && "$home/$name/bin/pip" install -q "$@" >"$home/$name.log" 2>&1 && echo "$*" >"$home/$name/.complete" ||
        { echo "skipped: $* cannot be installed ($home/$name.log)"; return 3; }
}

# Packages of npm in a folder of their own.
npm_packages() {
    name=$1
    shift
    [ "$(cat "$home/$name/.complete" 2>/dev/null)" = "$*" ] && return
    command -v npm >/dev/null || { echo "skipped: there is no npm"; return 3; }
    rm -rf "${home:?}/$name"
    mkdir -p "$home/$name" && (cd "$home/$name" && npm init -y && npm install "$@") >"$home/$name.log" 2>&1 && echo "$*" >"$home/$name/.complete" ||
        { echo "skipped: $* cannot be installed ($home/$name.log)"; return 3; }
}

serve() { python3 "$here/server.py" "$@"; }
both() { serve REPLAY --replay "$here/replay.jsonl" --api-key sk-test -- python3 "$here/server.py" TINY -- "$@"; }

openai_python() {
    python_packages openai-python openai==3.54.0 || return
    both "$home/openai-python/bin/python" "$here/openai_python.py"
}

qwen3() {
    python_packages openai-python openai==3.54.0 || return
    python3 "$here/qwen3_model.py" "$scratch/qwen3" || return
    serve REPLAY "$scratch/qwen3" --replay "$here/qwen3.jsonl" --model-name qwen3 -- \
        python3 "$here/server.py" MODEL "$scratch/qwen3" --model-name qwen3 -n 4096 -b 4 -- "$home/openai-python/bin/python" "$here/qwen3.py"
}

openai_npm() {
    npm_packages openai-npm openai@7.55.0 zod@4.1.13 || return
    (cd "$home/openai-npm" && both node "$here/openai_npm.mjs")
}

langchain() {
    python_packages langchain langchain-openai==1.7.3 || return
    both "$home/langchain/bin/python" "$here/langchain_client.py"
}

litellm() {
    python_packages litellm litellm==1.81.10 || return
    both "$home/litellm/bin/python" "$here/litellm_client.py"
}

litellm_proxy() {
    python_packages litellm-proxy 'litellm[proxy]==1.81.10' || return
    serve REPLAY --replay "$here/replay.jsonl" --api-key sk-test --model-name gpt-oss-20b -- \
        python3 "$here/litellm_proxy.py" "$home/litellm-proxy/bin/litellm" "$scratch/litellm-proxy"
}

open_webui() { serve REPLAY --replay "$here/replay.jsonl" --api-key sk-test -- python3 "$here/open_webui.py"; }

codex() {
    npm_packages codex @openai/codex@0.169.0 || return
    serve REPLAY --replay "$here/codex.jsonl" --model-name gpt-oss-20b -- sh "$here/codex.sh" "$home/codex" "$scratch"
}

opencode() {
    npm_packages opencode opencode-ai@1.18.33 || return
    serve REPLAY --replay "$here/opencode.jsonl" --model-name gpt-oss-20b -- sh "$here/opencode.sh" "$home/opencode" "$scratch"
}

page() {
    python_packages page websockets==17.4 || return
    npm_packages axe axe-core@4.14.1
    axe="$home/axe/node_modules/axe-core/axe.min.js"
    [ -f "$axe" ] || axe=
    "$home/page/bin/python" "$here/page.py" --screenshots "$home/screenshots" ${axe:+--axe "$axe"}
}

# What the page makes of the Markdown of models, without a browser.
markdown() {
    command -v node >/dev/null || { echo "skipped: there is no node"; return; }
    node "$here/markdown.mjs"
}

compatibility() {
    [ -n "${GPT_OSS:-}" ] || { echo "skipped: GPT_OSS names no checkout of openai/gpt-oss"; return; }
    command -v npm >/dev/null || { echo "skipped: there is no npm"; return; }
    python3 "$here/compatibility.py" "$GPT_OSS/compatibility-test" "$home/compatibility" "$scratch/compatibility.jsonl" &&
        serve REPLAY --replay "$scratch/compatibility.jsonl" --any-model -- python3 "$here/compatibility.py" --run "$home/compatibility"
}

llama_cpp() {
    [ -n "${LLAMA_CPP:-}" ] || { echo "skipped: LLAMA_CPP names no checkout of ggml-org/llama.cpp"; return; }
    python_packages llama-cpp pytest==8.3.5 openai==2.14.0 requests==2.32.5 numpy==2.2.6 prometheus-client==0.20.0 wget==3.2 filelock==3.16.1 huggingface-hub==1.1.5 || return
    python3 "$here/llama_cpp.py" "$LLAMA_CPP/tools/server/tests" "$home/llama-cpp/bin/python" "$scratch/llama-cpp"
}

schemathesis() {
    [ -n "${OPENAPI:-}" ] || { echo "skipped: OPENAPI names no openapi.json of openai/openai-openapi"; return; }
    python_packages schemathesis schemathesis==4.32.5 || return
    serve TINY -n 256 --any-model -- python3 "$here/bodies.py" "$OPENAPI" "$home/schemathesis/bin/schemathesis" "$scratch" "$home/schemathesis.txt"
}

schemas() {
    python_packages schemas jsonschema-rs==0.60.3 || return
    serve OFF --speculate off -- python3 "$here/server.py" TINY -- "$home/schemas/bin/python" "$here/schemas.py" 1000
}

dashboard() {
    program=$(command -v prometheus || command -v "${PROMETHEUS:-prometheus}") || { echo "skipped: there is no prometheus"; return; }
    serve TINY --api-key sk-test -- python3 "$here/prometheus.py" "$program" "$scratch/dashboard"
}

evaluation_harness() {
    python_packages evaluation-harness 'lm_eval[api]==0.4.13' transformers==5.24.0 || return
    "$home/evaluation-harness/bin/python" "$here/evaluation_harness.py" "$home/evaluation-harness/bin/lm_eval" "$scratch/evaluation-harness"
}

# What agents are made with, each in all of its modes and in an environment of its own, and Anthropic's own client.
agent_library() {
    library=$1
    shift
    python_packages "agents-$library" "$@" || return
    serve REPLAY --replay "$here/agent_libraries.jsonl" --api-key sk-test --model-name gpt-oss-20b -- \
        "$home/agents-$library/bin/python" "$here/agent_libraries.py" "$library"
}

anthropic_sdk() { agent_library anthropic_sdk anthropic==2.14.0; }
llm() { agent_library llm llm==0.36; }
openai_agents() { agent_library openai_agents openai-agents==0.24.0; }
pydantic_ai() { agent_library pydantic_ai 'pydantic-ai-slim[openai]==2.68.0'; }
instructor() { agent_library instructor 'instructor[anthropic]==1.17.0'; }
smolagents() { agent_library smolagents 'smolagents[openai]==1.26.0'; }
llama_index() { agent_library llama_index llama-index-llms-openai-like==0.8.1; }
haystack() { agent_library haystack haystack-ai==3.4.1; }
dspy() { agent_library dspy dspy==3.4.1; }

ai_sdk() {
    npm_packages ai-sdk ai@6.0.326 @ai-sdk/openai-compatible@2.0.92 @ai-sdk/openai@3.0.141 @ai-sdk/anthropic@3.0.140 zod@4.1.13 || return
    (cd "$home/ai-sdk" && serve REPLAY --replay "$here/agent_libraries.jsonl" --api-key sk-test --model-name gpt-oss-20b -- node "$here/ai_sdk.mjs")
}

aider() {
    python_packages aider aider-chat==0.86.2 || return
    serve REPLAY --replay "$here/aider.jsonl" --model-name gpt-oss-20b -- sh "$here/aider.sh" "$home/aider" "$scratch"
}

continue_cli() {
    npm_packages continue @continuedev/cli@1.5.47 || return
    serve REPLAY --replay "$here/continue.jsonl" --model-name gpt-oss-20b -- sh "$here/continue.sh" "$home/continue" "$scratch"
}

# OpenAI's batch API: 1,000 requests by either package, through a kill of the server.
batches() {
    failed=0
    python_packages openai-python openai==3.54.0 && { python3 "$here/batches.py" openai-python "$home/openai-python/bin/python" "$here/batch_client.py" || failed=1; }
    npm_packages openai-npm openai@7.55.0 zod@4.1.13 && { (cd "$home/openai-npm" && python3 "$here/batches.py" openai-npm node "$here/batch_client.mjs") || failed=1; }
    return $failed
}

# Routers of others in front of two servers, one of which is killed.
routers() {
    python_packages routers vllm-router==0.1.17 sglang-router==0.3.2 && python_packages litellm-proxy 'litellm[proxy]==1.81.10' || return
    python3 "$here/routers.py" "$home/routers/bin" "$home/litellm-proxy/bin" "$scratch/routers"
}

# The manifests of examples/, by Kubernetes' schemas, and what they rely on.
kubernetes() {
    python_packages kubernetes kubernetes-validate==1.37.0 || return
    "$home/kubernetes/bin/python" "$here/kubernetes.py" "$scratch/kubernetes"
}

# Later ones need torch, of 5 GB.
guidellm() {
    python_packages guidellm guidellm==0.3.1 || return
    python3 "$here/benchmarks.py" guidellm "$home/guidellm/bin/guidellm" "$scratch/guidellm"
}

aiperf() {
    python_packages aiperf aiperf==0.13.0 || return
    python3 "$here/benchmarks.py" aiperf "$home/aiperf/bin/aiperf" "$scratch/aiperf"
}

# Chat templates of published models, rendered here and by transformers; those of llama-cpp-python's source package.
chat_templates() {
    python_packages chat-templates transformers==5.24.0 jinja2==3.1.6 || return
    if [ ! -d "$home/chat-templates/templates" ]; then
        "$home/chat-templates/bin/pip" download -q --no-deps --no-binary llama-cpp-python -d "$scratch/llama" llama-cpp-python==0.3.36 >"$home/chat-templates.log" 2>&1 &&
            mkdir -p "$scratch/llama/all" "$home/chat-templates/templates" &&
            tar xzf "$scratch"/llama/*.tar.gz -C "$scratch/llama/all" --wildcards '*/models/templates/*.jinja' &&
            find "$scratch/llama/all" -name '*.jinja' -exec cp {} "$home/chat-templates/templates" \; ||
            { echo "skipped: llama-cpp-python's sources cannot be had ($home/chat-templates.log)"; return 3; }
    fi
    "$home/chat-templates/bin/python" "$here/chat_templates.py" "$home/chat-templates/templates"/*.jinja
}

snippets() { python3 "$here/snippets.py" "$home" "$scratch"; }

agents="anthropic_sdk llm openai_agents pydantic_ai instructor smolagents llama_index haystack dspy ai_sdk aider continue_cli guidellm aiperf"
all="openai_python qwen3 openai_npm langchain litellm litellm_proxy open_webui codex opencode markdown page compatibility llama_cpp dashboard schemas schemathesis evaluation_harness $agents chat_templates batches kubernetes snippets"
slow="routers" # only where it is named
for name in "$@"; do
    case " agents $all $slow " in
        *" $name "*) ;;
        *) echo "usage: $0 [NAME...], of: $all $slow; agents are: $agents; without a NAME all but $slow" >&2; exit 2 ;;
    esac
done
named=" ${*:-$all} "
case $named in *" agents "*) named="${named%% agents *} $agents ${named#* agents }" ;; esac
for name in $named; do
    printf '\n==> %s\n' "$name"
    { "$name" 2>&1; echo "$?" >"$scratch/exit"; } | tee "$scratch/log"
    cat "$scratch/log" >>"$scratch/all"
    code=$(cat "$scratch/exit")
    # A script that died has said nothing of what it did not do.
    if [ "$code" -eq 3 ] && grep -q '^skipped: ' "$scratch/log"; then
        :
    elif [ "$code" -ne 0 ] && ! grep -q '^FAILED' "$scratch/log"; then
        echo "FAILED  $name: exit $code" | tee -a "$scratch/all"
    elif ! grep -qE '^(ok  |FAILED|skipped: )' "$scratch/log"; then
        echo "FAILED  $name did nothing" | tee -a "$scratch/all"
    fi
done
printf '\n==> summary\n'
passed=$(grep -c '^ok  ' "$scratch/all") failed=$(grep -c '^FAILED' "$scratch/all") skipped=$(grep -c '^skipped: ' "$scratch/all")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
