"""Many clients that behave badly, against the built-in model: nothing is lost, wrong, or kept.

    python server.py TINY -b 64 --precision f32 -- python load.py --seconds 600 --clients 200
    python server.py TINY -b 64 --precision f32 --kv-memory 50 -- python load.py --tokens 400 --ignore-eos --preempted

Each client asks one of `--pool` requests and waits for the answer, streamed or not, leaves in the midst of it, leaves before
it began, sends half a body, or reads a byte a second for a while. Each finished answer is compared with that of the same
request alone before the load, each part of one with its beginning. At the end nothing runs, waits or holds a block, and the
server's memory and descriptors (TINY_PID) are what they were. With --preempted the run is to have had sequences that gave
their blocks back: a server with little --kv-memory and answers of many --tokens. Python alone is needed. The last line is `N passed, N failed`.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import re
import socket
import struct
import sys
import time
import urllib.request

from bench_serve import ask, chunks

WORDS = "Once upon a time there was little girl named Lily who found the red kite in big park and said to Tom it is very sad".split()
WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["location", "days"],
    "additionalProperties": False,
}


def pool(n, most_tokens, ignore_eos, rng):
    """Requests of every kind, each with its path and body."""
    made = []
    for i in range(n):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(3, 120)))
        n_tokens = rng.randrange(1, most_tokens)
        kind = i % 6
        chat = {
            "messages": [{"role": "user", "content": text}],
            "max_completion_tokens": n_tokens,
            "seed": rng.randrange(1 << 40),
        }
        if kind == 0:
            greedy = {"prompt": text, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": ignore_eos}
            made.append(("/v1/completions", greedy))
        elif kind == 1:
            made.append(
                (
                    "/v1/completions",
                    {
                        "prompt": text,
                        "max_tokens": n_tokens,
                        "seed": rng.randrange(1 << 40),
                        "temperature": 1,
                        "top_p": 0.9,
                        "ignore_eos": ignore_eos,
                    },
                )
            )
        elif kind == 2:
            made.append(("/v1/chat/completions", chat))
        elif kind == 3:
            made.append(
                ("/v1/chat/completions", {**chat, "stop": ["kite"], "reasoning_effort": "low", "presence_penalty": 0.5})
            )
        elif kind == 4:
            form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER}}
            made.append(("/v1/chat/completions", {**chat, "response_format": form, "reasoning_effort": "none"}))
        else:
            tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
            made.append(
                (
                    "/v1/responses",
                    {"input": text, "max_output_tokens": n_tokens, "tools": [tool], "temperature": 0, "store": False},
                )
            )
    return made


def streamed(path, body):
    return {**body, "stream": True} | ({} if path == "/v1/responses" else {"stream_options": {"include_usage": True}})


def gathered(path, value):
    """What an unstreamed answer says, with nothing that is drawn anew for each."""
    if path == "/v1/responses":
        texts = [
            [
                (item["type"], item.get("arguments") or "".join(part["text"] for part in item.get("content") or []))
                for item in value["output"]
            ]
        ]
        return {"text": texts, "end": value["status"], "tokens": value["usage"]["output_tokens"]}
    choice = value["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    text = [
        message.get("reasoning") or "",
        message.get("content") or "",
        *[c["function"]["arguments"] for c in message.get("tool_calls") or []],
    ]
    return {"text": text, "end": choice["finish_reason"], "tokens": value["usage"]["completion_tokens"]}


def joined(path, text):
    """What a stream said, in the same shape, as far as it went; None in `end` if it did not come to its end."""
    events = [
        json.loads(line[6:])
        for line in text.decode(errors="replace").split("\n")
        if line.startswith("data: {") and line.endswith("}")
    ]
    if any("error" in event and event["error"] for event in events if "type" not in event or event["type"] == "error"):
        return {"error": events[-1]}
    if path == "/v1/responses":
        last = events[-1] if events else {}
        if last.get("type") in ("response.completed", "response.incomplete"):
            deltas = collections.defaultdict(str)
            for event in events:
                if event["type"].endswith(".delta"):
                    deltas[event["output_index"]] += event["delta"]
            got = gathered(path, last["response"])
            return (
                got
                if [t for _, t in got["text"][0]] == [deltas[i] for i in range(len(got["text"][0]))]
                else {"error": "deltas differ from the end"}
            )
        return {"end": None, "error": last} if last.get("type") == "response.failed" else {"end": None, "text": None}
    parts, calls, end, tokens = ["", ""], {}, None, None
    for event in events:
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            parts[0] += delta.get("reasoning") or ""
            parts[1] += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                calls[call["index"]] = calls.get(call["index"], "") + (call["function"].get("arguments") or "")
            end = choice["finish_reason"] or end
    done = b"data: [DONE]" in text
    return {"text": [*parts, *calls.values()], "end": end if done else None, "tokens": tokens if done else None}


def same(got, wanted, path):
    if got == wanted:
        return True
    # A call that was cut is in the stream, and in no whole answer.
    return (
        path == "/v1/chat/completions"
        and wanted["end"] == got["end"] == "length"
        and got["tokens"] == wanted["tokens"]
        and got["text"][:2] == wanted["text"][:2]
    )


def begins(got, wanted, path):
    if got["end"] is not None:
        return same(got, wanted, path)
    return got["text"] is None or all(
        whole.startswith(part.rstrip("\ufffd")) for part, whole in zip(got["text"][:2], wanted["text"])
    )


def metrics(url):
    text = urllib.request.urlopen(url + "/metrics", timeout=30).read().decode()
    sums = collections.Counter()
    for name, value in re.findall(r"^gptoss_(\w+)(?:\{[^}]*\})? (\S+)$", text, re.M):
        sums[name] += float(value)
    return sums


def memory(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024, len(os.listdir(f"/proc/{pid}/fd"))


class Load:
    def __init__(self, args):
        self.args, self.url = args, args.url
        self.pool = pool(args.pool, args.tokens, args.ignore_eos, random.Random(args.seed))
        self.alone = []
        self.count = collections.Counter()
        self.wrong = []

    def fault(self, what):
        self.count["faults"] += 1
        if len(self.wrong) < 10:
            self.wrong.append(what)

    async def whole(self, i, stream):
        path, body = self.pool[i]
        if stream:
            body = streamed(path, body)
        status, headers, reader, writer = await ask(self.url, path, body)
        text = b"".join([piece async for piece in chunks(reader, headers)])
        writer.close()
        if status != 200:
            return status, headers, text
        return status, headers, joined(path, text) if stream else gathered(path, json.loads(text))

    async def first(self):
        for i, (path, body) in enumerate(self.pool):
            status, _, got = await self.whole(i, False)
            if status != 200:
                sys.exit(f"{path} {json.dumps(body)[:200]}: {status} {got[:300]}")
            self.alone.append(got)

    async def finish(self, i, stream):
        status, headers, got = await self.whole(i, stream)
        if status == 503:
            self.count["refused"] += 1
            if "retry-after" not in headers:
                self.fault("503 without Retry-After")
            await asyncio.sleep(0.5)
        elif status != 200:
            self.fault(f"{self.pool[i][0]}: {status} {got[:200]}")
        elif "error" in got or not same(got, self.alone[i], self.pool[i][0]):
            self.fault(
                f"request {i}, stream={stream}: {json.dumps(got)[:300]} and not {json.dumps(self.alone[i])[:300]}"
            )
        else:
            self.count["streamed" if stream else "whole"] += 1

    async def leave(self, i, rng):
        """Leaves after some events, or before the first, with a closed or a reset connection."""
        path, body = self.pool[i]
        stream = rng.random() < 0.7
        body = streamed(path, body) if stream else body
        status, text, writer = None, b"", None

        async def read():
            nonlocal status, text, writer
            status, headers, reader, writer = await ask(self.url, path, body)
            n = rng.randrange(0, 40)
            async for piece in chunks(reader, headers):
                text += piece
                if (n := n - 1) < 0:
                    break

        try:
            await asyncio.wait_for(read(), rng.choice([0.001, 0.05, 0.5, 3]))
        except TimeoutError:
            pass
        if writer:
            if rng.random() < 0.3:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        if status == 200 and stream and b"\n\n" in text:
            got = joined(path, text[: text.rindex(b"\n\n")])
            if got.get("error") or not begins(got, self.alone[i], path):
                self.fault(
                    f"request {i}, left: {json.dumps(got)[:300]} does not begin {json.dumps(self.alone[i])[:300]}"
                )
        self.count["left"] += 1

    async def half(self, i, rng):
        path, body = self.pool[i]
        data = json.dumps(body).encode()
        host, port = self.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        writer.write((head + data)[: rng.randrange(1, len(head) + len(data))])
        await asyncio.sleep(rng.random() * 0.2)
        writer.transport.abort()
        self.count["half"] += 1

    async def slow(self, i, rng):
        """A byte a second for a while, through a small window; then the rest at once."""
        path, body = self.pool[i]
        host, port = self.url.removeprefix("http://").split(":")
        data = json.dumps(streamed(path, body)).encode()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, int(port)))
        await loop.sock_sendall(
            sock,
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data,
        )
        got = b""
        for _ in range(rng.randrange(5, 30)):
            got += await loop.sock_recv(sock, 1)
            await asyncio.sleep(1)
        while piece := await loop.sock_recv(sock, 1 << 16):
            got += piece
        sock.close()
        head, _, rest = got.partition(b"\r\n\r\n")
        if b" 503 " in head.split(b"\r\n")[0]:
            self.count["refused"] += 1
            return
        text = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        told = joined(path, text)
        if told.get("error") or not same(told, self.alone[i], path):
            self.fault(f"request {i}, slowly: {json.dumps(told)[:300]} and not {json.dumps(self.alone[i])[:300]}")
        else:
            self.count["slow"] += 1

    async def client(self, number, end):
        rng = random.Random(f"{self.args.seed} {number}")
        await asyncio.sleep(rng.random())
        while time.monotonic() < end:
            i, dice = rng.randrange(len(self.pool)), rng.random()
            try:
                if dice < 0.02:
                    await self.slow(i, rng)
                elif dice < 0.32:
                    await self.leave(i, rng)
                elif dice < 0.36:
                    await self.half(i, rng)
                else:
                    await self.finish(i, dice < 0.68)
            except (OSError, EOFError, ValueError, KeyError) as error:
                self.fault(f"request {i}: {error!r}")
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random())

    async def watch(self, pid, end, samples):
        while pid and time.monotonic() < end:
            samples.append(memory(pid))
            await asyncio.sleep(2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default=os.environ.get("TINY"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pool", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=90, help="answers have less than this")
    parser.add_argument("--ignore-eos", action="store_true", help="completions go on to their limit")
    parser.add_argument("--preempted", action="store_true", help="fail if no sequence had to give its blocks back")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    load, samples, counts = Load(args), [], [0, 0]
    pid = os.environ.get("TINY_PID")
    before = memory(pid) if pid else None

    def check(what, true):
        counts[not true] += 1
        print(("ok      " if true else "FAILED  ") + what, flush=True)

    async def run():
        await load.first()
        print(f"{len(load.alone)} requests alone; {args.clients} clients for {args.seconds} s", flush=True)
        end = time.monotonic() + args.seconds
        await asyncio.gather(load.watch(pid, end, samples), *(load.client(n, end) for n in range(args.clients)))

    asyncio.run(run())
    print(dict(load.count))
    finished = load.count["whole"] + load.count["streamed"] + load.count["slow"]
    check(
        f"{finished} answers finished, none is wrong or lost ({load.count['faults']} faults)",
        finished and not load.count["faults"],
    )
    for what in load.wrong:
        print("   ", what)
    for _ in range(300):
        now = metrics(load.url)
        held = {name: now[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")}
        if not any(held.values()):
            break
        time.sleep(0.1)
    check(
        f"nothing runs, waits or holds a block: {held}", all(name in now and not value for name, value in held.items())
    )
    print({name: value for name, value in now.items() if re.search("total$", name)})
    if args.preempted:
        check(f"{now['num_preemptions_total']:.0f} sequences gave their blocks back", now["num_preemptions_total"])
    if samples:
        time.sleep(2)
        after = memory(pid)
        # The first fifth fills caches: of prefixes, of grammars, of the allocator.
        late = samples[len(samples) // 5 :]
        half = len(late) // 2
        early, last = (sorted(m for m, _ in part)[len(part) // 2] for part in (late[:half] or late, late[half:]))
        check(
            f"memory is flat: {before[0]:.0f} MiB at the start, {early:.0f} and {last:.0f} MiB in the halves, {after[0]:.0f} MiB at the end",
            last < early * 1.1 + 8,
        )
        check(
            f"descriptors are given back: {before[1]} at the start, at most {max(n for _, n in samples)}, {after[1]} at the end",
            after[1] <= before[1] + 2,
        )
    print(f"{counts[0]} passed, {counts[1]} failed")
    return 1 if counts[1] else 0


if __name__ == "__main__":
    sys.exit(main())
