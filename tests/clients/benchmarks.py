"""Benchmarks that others wrote against a server of a fixture, whose tokenizer `transformers` reads.

    python benchmarks.py guidellm|aiperf PROGRAM FOLDER

Checked: every request that was sent was answered, with as many tokens as it asked for.
"""

import json
import os
import pathlib
import subprocess
import sys

from server import ROOT, Server

MODEL = ROOT / "tests/fixtures/checkpoints/hf-bf16"
N_REQUESTS, N_TOKENS = 8, 6


def tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text((MODEL / "tokenizer.json").read_text())
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends))
    return str(folder)


def run(command, folder, **environment):
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300, cwd=folder)
    return "" if ran.returncode == 0 else f"exit {ran.returncode}: {(ran.stdout + ran.stderr)[-2000:]}"


def guidellm(program, url, folder, kind):
    wanted = {"completions": "text_completions", "chat": "chat_completions"}[kind]
    command = [program, "benchmark", "run", "--target", url, "--model", "it", "--processor", tokenizer(folder / "tokenizer")]
    command += ["--data", f"prompt_tokens=16,output_tokens={N_TOKENS}", "--rate-type", "concurrent", "--rate", "2"]
    command += ["--max-requests", str(N_REQUESTS), "--output-path", "out.json", "--disable-progress"]
    if failure := run(command, folder, HF_HUB_OFFLINE="1", GUIDELLM__PREFERRED_ROUTE=wanted):
        return failure
    requests = json.loads((folder / "out.json").read_text())["benchmarks"][0]["requests"]
    done = [request["output_tokens"] for request in requests["successful"]]
    return "" if done == [N_TOKENS] * N_REQUESTS and not requests["errored"] else f"{done}, {requests['errored'][:1]}"


def aiperf(program, url, folder, kind):
    command = [program, "profile", "-m", "it", "--url", url, "--endpoint-type", kind, "--streaming", "--tokenizer"]
    command += [tokenizer(folder / "tokenizer"), "--concurrency", "2", "--request-count", str(N_REQUESTS), "--ui", "none"]
    command += ["--synthetic-input-tokens-mean", "16", "--output-tokens-mean", str(N_TOKENS), "--use-server-token-count"]
    if failure := run([*command, "--output-artifact-dir", "out"], folder):
        return failure
    lines = [json.loads(line) for line in (folder / "out/profile_export.jsonl").read_text().splitlines()]
    done = [line["metrics"].get("output_sequence_length", {}).get("value") for line in lines]
    if done != [N_TOKENS] * N_REQUESTS or any(line.get("error") for line in lines):
        return f"{done}, {lines[:1]}"
    # It also reads the server's own counts.
    read = (folder / "out/server_metrics_export.json").read_text()
    return "" if "num_requests_running" in read else "the server's metrics were not read"


def main():
    name, program, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    failed = 0
    # Every token is a text of its own in completions; what a model of random weights says is no chat, so that is a script's.
    script = {"text": "<|channel|>final<|message|>" + " word" * 40}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.jsonl").write_text(json.dumps(script) + "\n")
    served = {"completions": [str(MODEL), "--device", "cpu", "-b", "2"], "chat": ["--replay", str(folder / "script.jsonl")]}
    for kind, arguments in served.items():
        own = folder / kind
        own.mkdir(exist_ok=True)
        with Server(*arguments, "--model-name", "it") as server:
            failure = {"guidellm": guidellm, "aiperf": aiperf}[name](program, server.url, own, kind)
        failed += bool(failure)
        print(f"FAILED  {name} {kind}: {failure}" if failure else f"ok      {name} {kind}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
