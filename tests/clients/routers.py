"""Routers of others in front of two servers with the built-in model: routing by prefix, streams, health, a server that is killed.

    python routers.py ROUTERS LITELLM SCRATCH [NAME...]      folders with the programs, and one for files
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from server import Server

MODEL = "routed"
N_CONVERSATIONS = 8


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, path, body=None, timeout=60):
    data = None if body is None else json.dumps(body).encode()
    head = {"Content-Type": "application/json", "Authorization": "Bearer sk-any"}
    return urllib.request.urlopen(urllib.request.Request(url + path, data, head), timeout=timeout).read().decode()


def chat(messages, **more):
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def user(text):
    return {"role": "user", "content": text}


def answered(server):
    """Requests that came to their end at a server."""
    text = ask(server.url, "/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("gptoss_request_success_total"))


def check(name, what, true, why=""):
    print(("ok      " if true else "FAILED  ") + f"{name}: {what}" + ("" if true else f": {why}"), flush=True)
    return true


def conversation(i):
    """A beginning that no other conversation has, of some hundred tokens."""
    return [user(f"Conversation {i}. " + " ".join(f"word{i * 1000 + n}" for n in range(60)))]


def commands(routers, litellm, scratch, servers, port):
    urls = [server.url for server in servers]
    config = scratch / "litellm.yaml"
    deployments = [
        {"model_name": MODEL, "litellm_params": {"model": f"hosted_vllm/{MODEL}", "api_base": url + "/v1", "api_key": "none"}}
        for url in urls
    ]
    settings = {"num_retries": 3, "allowed_fails": 0, "cooldown_time": 30, "routing_strategy": "least-busy"}
    # JSON is YAML.
    config.write_text(json.dumps({"model_list": deployments, "router_settings": settings}))
    common = ["--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port)]
    # Without these all of a small load goes to one server, whatever it knows.
    common += ["--balance-abs-threshold", "2", "--balance-rel-threshold", "1.1", "--cache-threshold", "0.3"]
    python = str(routers / "python")
    return {
        "vllm-router": ([python, "-m", "vllm_router.launch_router", *common, "--prometheus-port", str(free_port())], True),
        "sglang-router": ([python, "-m", "sglang_router.launch_router", *common, "--prometheus-port", str(free_port())], True),
        "LiteLLM's proxy": ([str(litellm / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)], False),
    }


def routed(name, url, servers, by_prefix):
    """What works through a router while both servers are there, and after one was killed."""
    plain = json.loads(ask(servers[0].url, "/v1/chat/completions", chat([user("hi")])))["choices"][0]["message"]
    through = json.loads(ask(url, "/v1/chat/completions", chat([user("hi")])))["choices"][0]["message"]
    fine = check(name, "an answer is that of the server", through["content"] == plain["content"], through)
    text = ask(url, "/v1/chat/completions", chat([user("hi")], stream=True))
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    fine &= check(name, "so is a stream", said == (plain["content"] or "") and "data: [DONE]" in text and len(chunks) > 1, text[-300:])
    models = json.loads(ask(url, "/v1/models"))
    fine &= check(name, "lists the model", MODEL in [one["id"] for one in models["data"]], models)

    before = [answered(server) for server in servers]
    cached = 0
    for turn in range(3):
        at_once = []
        for i in range(N_CONVERSATIONS):
            messages = conversation(i) + [user(f"Turn {n}.") for n in range(turn)]
            one = threading.Thread(target=lambda messages=messages: at_once.append((turn, json.loads(ask(url, "/v1/chat/completions", chat(messages))))))
            at_once.append(one)
            one.start()
        for one in [one for one in at_once if isinstance(one, threading.Thread)]:
            one.join()
        answers = [answer for answer in at_once if isinstance(answer, tuple)]
        cached += sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for turn, answer in answers if turn > 0)
    each = [answered(server) - n for server, n in zip(servers, before)]
    again = 2 * N_CONVERSATIONS
    fine &= check(name, "both servers answer", all(n > 0 for n in each) and sum(each) == 3 * N_CONVERSATIONS, each)
    print(f"{name}: {cached} of {again} later turns found their prefix; the servers answered {each}")
    if by_prefix:
        fine &= check(name, "a conversation goes where its prefix is", cached >= again * 3 // 4, cached)

    stop, done = threading.Event(), []

    def go_on(k):
        n = 0
        while not stop.is_set():
            begin, n = time.monotonic(), n + 1
            try:
                body = chat([user(f"client {k}, {n}")], stream=k % 2 == 1)
                whole = ask(url, "/v1/chat/completions", body)
                done.append((begin, "[DONE]" in whole if k % 2 else "choices" in whole))
            except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException):
                done.append((begin, False))

    clients = [threading.Thread(target=go_on, args=(k,)) for k in range(4)]
    for client in clients:
        client.start()
    time.sleep(2)
    servers[1].process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    time.sleep(20)
    stop.set()
    for client in clients:
        client.join()
    failed = [begin - killed for begin, good in done if not good]
    late = [begin for begin, good in done if begin > killed + 10]
    fine &= check(name, "answers before the kill", all(begin >= -5 for begin in failed) and done[0][1], failed)
    fine &= check(name, "answers all from 10 s after it on", late and max(failed, default=0) < 10, failed[-5:])
    print(f"{name}: {len(done)} requests around the kill, {len(failed)} failed, the last {max(failed, default=0):.1f} s after it")
    return fine


def main(routers, litellm, scratch, names):
    scratch.mkdir(parents=True, exist_ok=True)
    fine = True
    arguments = ["--model-name", MODEL, "-b", "8", "--speculate", "off"]
    for name in names or ["vllm-router", "sglang-router", "LiteLLM's proxy"]:
        with Server(*arguments) as one, Server(*arguments) as other:
            servers, port = [one, other], free_port()
            command, by_prefix = commands(routers, litellm, scratch, servers, port)[name]
            url = f"http://127.0.0.1:{port}"
            environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
            with open(scratch / f"{re.sub('[^a-z-]', '', name)}.log", "w+") as log:
                router = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=scratch, start_new_session=True)
                try:
                    end = time.monotonic() + 240
                    while router.poll() is None and time.monotonic() < end:
                        try:
                            ask(url, "/v1/chat/completions", chat([user("hi")]))
                            break
                        except (urllib.error.URLError, OSError):
                            time.sleep(0.5)
                    health = "/health/liveliness" if "LiteLLM" in name else "/health"
                    fine &= check(name, "is healthy", ask(url, health) is not None)
                    fine &= routed(name, url, servers, by_prefix)
                except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
                    log.seek(0)
                    fine &= check(name, "answers", False, f"{error!r}\n{log.read()[-2000:]}")
                finally:
                    if router.poll() is None:
                        os.killpg(router.pid, signal.SIGTERM)
                    try:
                        router.wait(30)
                    except subprocess.TimeoutExpired:
                        os.killpg(router.pid, signal.SIGKILL)
    return fine


if __name__ == "__main__":
    sys.exit(0 if main(*map(pathlib.Path, sys.argv[1:4]), sys.argv[4:]) else 1)
