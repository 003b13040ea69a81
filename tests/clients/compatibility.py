"""The compatibility test of openai/gpt-oss.

    python compatibility.py FOLDER COPY SCRIPT    copies the test, installs its packages, writes the script of right answers
    python compatibility.py --run COPY            runs the test against the server REPLAY, and reads its summary

The script has, for each case, the call that the case expects, and an answer for each tool's result. What is tested is
therefore the server and no model: 60 tasks, none invalid, all of them passed.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys


def prepare(folder, copy, script):
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    if not (copy / "node_modules" / "tsx").exists():
        for command in [["npm", "install"], ["npm", "install", "--no-save", "tsx@4.20.6"]]:
            done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
            if done.returncode:
                print(f"skipped: {' '.join(command)}: {done.stderr[-300:]}")
                return 3
    lines = []
    cases = [json.loads(line) for line in (copy / "cases.jsonl").read_text().splitlines() if line.strip()]
    for tool in sorted({case["tool_name"] for case in cases}):
        lines.append(
            {
                "prompt": f"<|start|>functions.{tool} to=assistant",
                "text": "<|channel|>final<|message|>That is what it says.<|return|>",
            }
        )
    # A longer input goes first: a shorter one may be part of it.
    for case in sorted(cases, key=lambda case: -len(case["input"])):
        call = f"<|start|>assistant to=functions.{case['tool_name']}<|channel|>commentary json<|message|>{case['expected_arguments']}<|call|>"
        lines.append({"prompt": case["input"], "text": f"<|channel|>analysis<|message|>A tool does that.<|end|>{call}"})
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0


def run(copy):
    url = os.environ["REPLAY"]
    providers = (copy / "providers.ts").read_text()
    (copy / "providers.ts").write_text(re.sub(r'apiBaseUrl: "[^"]*"', f'apiBaseUrl: "{url}/v1"', providers))
    failed = False
    for flags, apis in [
        (["-k", "5", "--strict"], ["Responses", "Chat Completions"]),
        (["-k", "2", "--streaming"], ["Chat Completions"]),
    ]:
        streaming = "--streaming" in flags
        # The test's own code throws for streamed responses, whatever the server.
        (copy / "providers.ts").write_text(
            re.sub(
                r"apiType: \[[^]]*\]",
                'apiType: ["chat"]' if streaming else 'apiType: ["responses", "chat"]',
                (copy / "providers.ts").read_text(),
            )
        )
        done = subprocess.run(
            ["npm", "start", "--", "--provider", "vllm", *flags], cwd=copy, capture_output=True, text=True
        )
        summary = (
            done.stdout[done.stdout.rfind("Summary:") :]
            if "Summary:" in done.stdout
            else done.stdout[-2000:] + done.stderr[-2000:]
        )
        print(summary.rstrip())
        number = lambda name: (m := re.search(re.escape(name) + r":\s*([\d.]+)", summary)) and float(m[1])
        tries, tasks = int(flags[1]), 30 * len(apis)
        wanted = {"Total tasks": tasks, f"pass@k (k={tries})": 1, f"pass^k (k={tries})": 1, "Wrong-input tool calls": 0}
        wanted |= {f"Invalid {api} API responses": 0 for api in apis}
        for name, value in wanted.items():
            good = number(name) == value
            failed |= not good
            print(
                f"{'ok      ' if good else 'FAILED  '}{' '.join(flags)}: {name} is {number(name)}{'' if good else f' and not {value}'}"
            )
    for left in [*copy.glob("rollout_*"), *copy.glob("analysis_*")]:
        left.unlink()
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        sys.exit(run(pathlib.Path(sys.argv[2])))
    sys.exit(prepare(*map(pathlib.Path, sys.argv[1:4])))
