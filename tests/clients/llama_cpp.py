"""Those of llama.cpp's server tests that are about the API and not about llama.cpp.

    python llama_cpp.py TESTS PYTHON COPY      TESTS: tools/server/tests of a checkout; PYTHON: one with its requirements

With DEBUG_EXTERNAL the suite starts and downloads nothing, and asks the server on port 8080. Left out: one case of bad
messages, two assistant messages at the end, which is a conversation here. Changed, in a copy: that the content of a stream's
first chunk is null; it is an empty text, as OpenAI's.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

from server import Server

OURS = ["--any-model", "-n", "512"]
KEY = "sk-this-is-the-secret-key"
RUNS = [
    (OURS, "unit/test_chat_completion.py", "invalid_chat or logprobs", ["messages7"]),
    ([*OURS, "--api-key", KEY], "unit/test_security.py", "public_endpoint or openai_library", []),
    (OURS, "unit/test_basic.py", "start_simple", []),
]


def main(tests, python, copy):
    shutil.copytree(tests, copy)
    file = copy / "unit/test_chat_completion.py"
    text = file.read_text()
    asserted = "assert choice.delta.content is None\n"
    if asserted not in text:
        print("FAILED  the suite has changed")
    file.write_text(text.replace(asserted, "assert not choice.delta.content\n"))
    for arguments, file, words, without in RUNS:
        with Server(*arguments, port=8080) as server:
            chosen = f"({words})" + "".join(f" and not {word}" for word in without)
            environment = {**os.environ, "DEBUG_EXTERNAL": "1", "PORT": "8080"}
            command = [python, "-m", "pytest", file, "-k", chosen, "-rA", "-q", "--tb=short", "-p", "no:cacheprovider"]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)(.*)$", done.stdout, re.M)
        for outcome, name, why in found:
            print(f"{'ok      ' if outcome == 'PASSED' else 'FAILED  '}{name}{why if outcome != 'PASSED' else ''}")
        if not found or any(outcome != "PASSED" for outcome, _, _ in found):
            print(textwrap.indent(done.stdout[-4000:] + done.stderr[-1000:], "    "))
        if not found:
            print(f"FAILED  nothing ran of {file}")


if __name__ == "__main__":
    if not pathlib.Path(sys.argv[1]).is_dir():
        print(f"skipped: there is no {sys.argv[1]}")
    else:
        main(*sys.argv[1:3], pathlib.Path(sys.argv[3]))
