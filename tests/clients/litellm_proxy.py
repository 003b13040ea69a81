"""LiteLLM's proxy in front of a server, with the configuration of docs/serve.md: REPLAY (replay.jsonl, key sk-test).

    python litellm_proxy.py LITELLM SCRATCH      the program, and a folder for its files
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

HELLO = "Hello! 🙂 What can I do?"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def config():
    """The snippet, with this server's address and key."""
    text = (ROOT / "docs/serve.md").read_text()
    snippet = text.split("Its proxy, in `config.yaml`:")[1].split("```yaml\n")[1].split("```")[0]
    assert "http://127.0.0.1:8000" in snippet and "api_key: none" in snippet, snippet
    return snippet.replace("http://127.0.0.1:8000", os.environ["REPLAY"]).replace("api_key: none", "api_key: sk-test")


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-any"}
    return urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=120).read().decode()


def check(what, true):
    print(("ok      " if true else "FAILED  ") + f"LiteLLM's proxy {what}", flush=True)
    return true


def main(program, scratch):
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.yaml").write_text(config())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [program, "--config", str(scratch / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    with open(scratch / "proxy.log", "w+") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=scratch, start_new_session=True)
        try:
            end = time.monotonic() + 240
            while proxy.poll() is None and time.monotonic() < end:
                try:
                    ask(url, "/health/liveliness")
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.5)
            models = [model["id"] for model in json.loads(ask(url, "/v1/models"))["data"]]
            body = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "hi"}]}
            message = json.loads(ask(url, "/v1/chat/completions", body))["choices"][0]["message"]
            lines = ask(url, "/v1/chat/completions", {**body, "stream": True}).split("\n")
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
            log.seek(0)
            return check(f"answers: {error!r}\n{log.read()[-2000:]}", False)
        finally:
            if proxy.poll() is None:
                os.killpg(proxy.pid, signal.SIGTERM)
            proxy.wait(30)
    good = [
        check("lists its models", models == ["gpt-oss-20b"]),
        check(
            "passes a chat on, with its reasoning",
            (message["content"], message.get("reasoning_content")) == (HELLO, "The user greets."),
        ),
        check("passes a stream on", text == HELLO and "data: [DONE]" in lines),
    ]
    return all(good)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], pathlib.Path(sys.argv[2])) else 1)
