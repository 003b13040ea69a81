"""The dashboard's queries, answered by Prometheus itself, which reads the server as `examples/serve/prometheus.yml` says.

    python prometheus.py PROMETHEUS SCRATCH      the server is TINY, with the key sk-test

The address and the interval are another one, and the key is in a file of SCRATCH; all else is as in the example. Each query
is to be one that Prometheus takes, and to have a result where the server has done something of the kind.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from bodies import texts_of

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "serve"
# Nothing of it happened here: a division by nothing that was done, and what only happens with -g.
MAY_BE_EMPTY = ["replica", "requests_moved"]


def chat(url, **more):
    body = {"messages": [{"role": "user", "content": "Once upon a time"}], "max_completion_tokens": 24, **more}
    head = {"Content-Type": "application/json", "Authorization": "Bearer sk-test"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    return urllib.request.urlopen(request, timeout=60).read()


def main(program, scratch):
    url = os.environ["TINY"]
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "key").write_text("sk-test")
    config = (EXAMPLES / "prometheus.yml").read_text()
    for old, new in [
        ("127.0.0.1:8000", url.removeprefix("http://")),
        ("scrape_interval: 5s", "scrape_interval: 1s"),
        ("/etc/prometheus/gptoss-jit.key", str(scratch / "key")),
    ]:
        assert old in config, old
        config = config.replace(old, new)
    (scratch / "prometheus.yml").write_text(config)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = [
        f"--config.file={scratch}/prometheus.yml",
        f"--storage.tsdb.path={scratch}/data",
        f"--web.listen-address={address}",
    ]
    with open(scratch / "log", "w") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    failed = 0

    def check(what, true):
        nonlocal failed
        failed += not true
        print(f"{'ok      ' if true else 'FAILED  '}{what}")

    def ask(query):
        try:
            where = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            return json.load(urllib.request.urlopen(where, timeout=10))
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError:
            return {}

    def up():
        return [one["value"][1] for one in ask('up{job="gptoss-jit"}').get("data", {}).get("result", [])]

    try:
        end = time.monotonic() + 90
        while up() != ["1"] and time.monotonic() < end:
            time.sleep(0.5)
        for i in range(8):
            chat(url, seed=i)
            chat(url, seed=i, stream=True)
            time.sleep(1)
        time.sleep(2)
        check(f"Prometheus reads the server: up is {up()}", up() == ["1"])
        dashboard = json.loads((EXAMPLES / "grafana.json").read_text())
        wrong, empty, n = [], [], 0
        for query in texts_of("expr", dashboard["panels"]):
            query = query.replace("$model", ".*").replace("$__rate_interval", "30s")
            answer, n = ask(query), n + 1
            if answer.get("status") != "success":
                wrong.append((query, answer.get("error")))
            elif not answer["data"]["result"] and not any(name in query for name in MAY_BE_EMPTY):
                empty.append(query)
        check(f"{n} queries of the dashboard are answered: {wrong}", n and not wrong)
        check(f"what was done here is in their results: {empty}", not empty)
        rate = ask("sum(increase(gptoss_generation_tokens_total[1m]))")["data"]["result"]
        n_tokens = float(rate[0]["value"][1]) if rate else 0
        check(f"tokens were counted: {n_tokens:.0f} in a minute", n_tokens > 50)
        names = ask('count by (__name__) ({__name__=~"gptoss_.*"})')["data"]["result"]
        read = {one["metric"]["__name__"] for one in names}
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": "Bearer sk-test"})
        text = urllib.request.urlopen(request).read().decode()
        told = set(re.findall(r"^(gptoss_\w+)(?:\{|\s)", text, re.M))
        check(f"all {len(told)} names of /metrics were read; not: {sorted(told - read)}", told and told <= read)
    finally:
        process.terminate()
        process.wait(30)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
