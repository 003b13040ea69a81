"""Runs the snippets of docs/serve.md as they stand there, against a server with scripted answers on port 8000.

    python snippets.py HOME SCRATCH       HOME: the folder with the clients of run.sh

A snippet is told by the words before it. What cannot be run here is skipped aloud.
"""

import os
import pathlib
import re
import subprocess
import sys

from server import ROOT, Server

SAID = "Hello from the script."


def main(home, scratch):
    text = (ROOT / "docs" / "serve.md").read_text()
    clients = text[text.index("## Clients") : text.index("## What clients were tried")]
    found = re.findall(r"^\*\*(.+?)\*\*.*?\n\n?```(\w+)\n(.*?)```", clients, re.M | re.S)
    work = scratch / "snippets"
    work.mkdir()
    environment = {
        **os.environ,
        "HOME": str(work),
        "PWD": str(work),
        "CODEX_HOME": str(work),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(name, command, cwd=work):
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        # A stream has the words one by one.
        joined = "".join(re.findall(r'"content":"([^"]*)"', done.stdout))
        good = done.returncode == 0 and (SAID in done.stdout or SAID in joined)
        print(("ok      " if good else "FAILED  ") + f"the snippet for {name}")
        if not good:
            print("    " + (done.stdout + done.stderr)[-1500:].replace("\n", "\n    "))

    def python(package):
        return str(home / package / "bin" / "python")

    for name, language, snippet in found:
        path = work / f"snippet.{language}"
        path.write_text(snippet)
        needs = {
            "openai, Python": "openai-python",
            "openai, JavaScript": "openai-npm",
            "LangChain": "langchain",
            "LiteLLM": "litellm",
        }.get(name, name)
        if name == "curl":
            run(name, ["sh", str(path)])
        elif name == "Open WebUI":
            print("skipped: the snippet for Open WebUI (an installation of gigabytes)")
        elif not (home / needs / ".complete").exists():
            print(f"skipped: the snippet for {name} ({needs} is not installed)")
        elif language == "python":
            run(name, [python(needs), str(path)])
        elif language == "js":
            module = home / needs / "snippet.mjs"
            module.write_text(snippet)
            run(name, ["node", str(module)])
            module.unlink()
        elif name == "codex":
            (work / "config.toml").write_text(snippet)
            run(
                name,
                [
                    str(home / "codex/node_modules/.bin/codex"),
                    "exec",
                    "--skip-git-repo-check",
                    "--sandbox",
                    "read-only",
                    "say hello",
                ],
            )
        elif name == "opencode":
            (work / "opencode.json").write_text(snippet)
            run(name, [str(home / "opencode/node_modules/.bin/opencode"), "run", "say hello"])
        else:
            print(f"FAILED  nobody knows how to run the snippet for {name}")


if __name__ == "__main__":
    script = ROOT / "tests" / "clients" / "codex.jsonl"
    with Server("--replay", str(script), "--model-name", "gpt-oss-20b", port=8000):
        main(*map(pathlib.Path, sys.argv[1:3]))
