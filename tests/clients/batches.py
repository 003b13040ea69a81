"""A batch of 1,000 requests of the built-in model, by a client of others, through a kill -9 of the server in the middle.

    python batches.py NAME COMMAND...     COMMAND gets URL, REQUESTS, OUTPUT and ERRORS behind its words

Of the requests, 990 have answers and 10 are wrong in a way that only the endpoint finds. Beside the batch others ask; how long
they waited is printed, and decides nothing.
"""

import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from server import Server

N, WRONG = 1000, range(50, 1000, 100)


def request(i):
    body = {
        "model": "gpt-oss-tiny",
        "messages": [{"role": "user", "content": f"Count from {i} on."}],
        "max_tokens": 8 + i % 25,
        "temperature": 0,
    }
    if i in WRONG:
        body["temperature"] = "hot"
    return {"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def ask(url, path, body=None):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-test"}
    data = None if body is None else json.dumps(body).encode()
    return json.load(urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=120))


def counts(url, batch):
    try:
        return ask(url, f"/v1/batches/{batch}")["request_counts"]
    except (urllib.error.URLError, OSError):
        return {"total": 0, "completed": 0, "failed": 0}


def wait(url, batch, n, seconds=300):
    end = time.monotonic() + seconds
    while (done := counts(url, batch))["completed"] + done["failed"] < n:
        if time.monotonic() > end:
            raise RuntimeError(f"after {seconds} s there are {done}, not {n}")
        time.sleep(0.02)
    return done["completed"] + done["failed"]


def interactive(url, n):
    """Seconds that requests for one token took, one after the other."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    took = []
    for _ in range(n):
        begin = time.monotonic()
        ask(url, "/v1/chat/completions", body)
        took.append(time.monotonic() - begin)
    return took


def check(name, what, true, why=""):
    print(("ok      " if true else "FAILED  ") + f"{name} {what}" + ("" if true else f": {why}"), flush=True)
    return true


def said(answer):
    message = answer["choices"][0]["message"]
    return message["content"], message.get("reasoning"), answer["choices"][0]["finish_reason"]


def main(name, command):
    with tempfile.TemporaryDirectory() as scratch:
        folder, lines = pathlib.Path(scratch) / "store", pathlib.Path(scratch) / "requests.jsonl"
        output, errors = pathlib.Path(scratch) / "output.jsonl", pathlib.Path(scratch) / "errors.jsonl"
        requests = [request(i) for i in range(N)]
        arguments = ["--batch-dir", str(folder), "--api-key", "sk-test", "-b", "8"]
        server = Server(*arguments)
        assert server.ready(), server.said()
        idle = interactive(server.url, 20)
        model = ask(server.url, "/v1/models")["data"][0]["id"]
        for one in requests:
            one["body"]["model"] = model
        lines.write_text("".join(json.dumps(one) + "\n" for one in requests))
        client = subprocess.Popen(
            [*command, server.url, str(lines), str(output), str(errors)], stdout=subprocess.PIPE, text=True
        )
        batch = client.stdout.readline().strip()
        assert batch.startswith("batch_"), batch
        wait(server.url, batch, 1)
        begin = time.monotonic()
        beside = interactive(server.url, 20)
        n_before = wait(server.url, batch, N // 3)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        before_s = time.monotonic() - begin
        kept = (folder / "batches" / f"{batch}.records").read_text().split("\n")[1:-1]
        kept = [json.loads(line)["line"] for line in kept]
        port = int(server.url.rsplit(":", 1)[1])
        again = Server(*arguments, port=port)
        with again:
            begin = time.monotonic()
            last = json.loads(client.communicate(timeout=600)[0].strip().split("\n")[-1])
            after_s = time.monotonic() - begin
            lone = {i: ask(again.url, "/v1/chat/completions", requests[i]["body"]) for i in range(7, N, 99)}
        good = [json.loads(line) for line in output.read_text().splitlines()]
        bad = [json.loads(line) for line in errors.read_text().splitlines()]
        by_id = {one["custom_id"]: one for one in good}
        expected = [f"request-{i}" for i in range(N) if i not in WRONG]
        written = set(output.read_text().splitlines()) | set(errors.read_text().splitlines())
        fine = [
            check(name, "ends with 0", client.returncode == 0, client.returncode),
            check(name, "has the batch completed, with its counts", (last["status"], last["request_counts"]["completed"], last["request_counts"]["failed"], last["request_counts"]["total"]) == ("completed", N - len(WRONG), len(WRONG), N), last),
            check(name, "was killed in the middle", N // 3 <= n_before < N and len(kept) < N, (n_before, len(kept))),
            check(name, "has each answer once, in order", [one["custom_id"] for one in good] == expected, len(good)),
            check(name, "has each error once, in order", [one["custom_id"] for one in bad] == [f"request-{i}" for i in WRONG], bad[:3]),
            check(name, "has all that was answered before the kill, to the byte", len(kept) >= N // 3 and written.issuperset(kept), len(kept)),
            check(name, "has OpenAI's layout", all(set(one) == {"id", "custom_id", "response", "error"} and one["error"] is None and set(one["response"]) == {"status_code", "request_id", "body"} for one in good + bad)),
            check(name, "has errors with the status and the place", all(one["response"]["status_code"] == 400 and one["response"]["body"]["error"]["param"] == "temperature" for one in bad), bad[:1]),
            check(name, "has what the same requests alone are answered", all(said(by_id[f"request-{i}"]["response"]["body"]) == said(answer) for i, answer in lone.items())),
        ]
        n_left = N - len(kept)
        print(
            f"{name}: {len(kept)} answers in {before_s:.1f} s with 20 others beside, {n_left} in {after_s:.1f} s; a token of another took "
            f"{statistics.median(idle) * 1e3:.0f} ms alone, {statistics.median(beside) * 1e3:.0f} ms beside (most {max(beside) * 1e3:.0f} ms)"
        )
    return all(fine)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1], sys.argv[2:]) else 1)
