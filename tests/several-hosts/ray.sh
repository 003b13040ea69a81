#!/bin/sh
# Ray Data over the Python module: 10,000 prompts, two workers, one of which is killed (ray_data.py beside this).
#
#   tests/several-hosts/ray.sh [GPTOSS-JIT]
#
# Needs a Python (GPTOSS_JIT_PYTHON, else python3) with the wheel and `ray[data]`. Exit code 3, with why, where one is missing.
set -u
program=$(realpath "${1:-$(dirname "$0")/../../target/release/gptoss-jit}")
. "$(dirname "$0")/one-run.sh"
python=${GPTOSS_JIT_PYTHON:-python3}
for module in ray.data gptoss_jit; do
    "$python" -c "import $module" 2>/dev/null || skip "$python has no module $module"
done
"$python" "$(dirname "$0")/ray_data.py" "$program"
