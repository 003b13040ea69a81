"""Measures a server of OpenAI's API: output tokens a second, time to first token, time between tokens.

    python bench_serve.py --url http://127.0.0.1:8000 --concurrency 32 --input 512 --output 256 [--requests 128] [--json]
    python bench_serve.py --url http://127.0.0.1:8000 --turns 20 --input 32000 --turn 200 --output 32

Needs Python alone. Prompts are random ids of `--vocab`, all different, so that no cached prefix helps, and sent to
/v1/completions; `ignore_eos` makes all answers `--output` long. Each of `--concurrency` clients asks again when it has its
answer. What several tokens came in is one chunk: the time between tokens is the time between chunks over the tokens of the
later one. `--processes` share the clients, so that what is measured is not Python.

With `--turns` one client holds a conversation over /v1/chat/completions: a message of about `--input` tokens, then one of
about `--turn` after each answer, all of it sent again each time, as clients do.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import sys
import time
import urllib.parse
import urllib.request


async def ask(url, path, body, key=None, method="POST"):
    """Sends a request; gives (status, headers, reader, writer), before anything of the body was read."""
    parts = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    if key:
        head.append(f"Authorization: Bearer {key}")
    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
    }
    return int(lines[0].split()[1]), headers, reader, writer


async def chunks(reader, headers):
    """The body in pieces, as they come. A body that is cut short is an IncompleteReadError."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        yield await reader.readexactly(int(headers.get("content-length", 0)))


def request_body(args, model, random_ids):
    return {
        "model": model,
        "prompt": [random_ids.randrange(args.vocab) for _ in range(args.input)],
        "max_tokens": args.output,
        "ignore_eos": True,
        "temperature": 1,
        "seed": random_ids.randrange(1 << 31),
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def one(args, path, body):
    """One request: when it was sent, and what came when."""
    start = time.perf_counter()
    status, headers, reader, writer = await ask(args.url, path, body, args.key)
    arrived = []
    async for piece in chunks(reader, headers):
        arrived.append((time.perf_counter(), piece))
    writer.close()
    return start, status, arrived


def events(arrived):
    """The events of a stream, each with when its end came."""
    seen, at = bytearray(), 0
    for when, piece in arrived:
        seen += piece
        while (end := seen.find(b"\n\n", at)) >= 0:
            event, at = seen[at:end], end + 2
            if event.startswith(b"data: {"):
                yield when, json.loads(event[6:])


def told(start, status, arrived):
    """For each event that carried a token, when it came and how many there were then."""
    text = b"".join(piece for _, piece in arrived)
    if status != 200 or b"data: [DONE]" not in text:
        return {"error": f"{status} {text[-300:]!r}"}
    carried, counted = [], 0
    for when, value in events(arrived):
        usage = value.get("usage")
        total = usage["completion_tokens"] if usage else counted + bool(value["choices"] and value["choices"][0]["text"])
        if total > counted:
            carried.append((when, total))
            counted = total
    return {"start": start, "events": carried, "tokens": counted}


async def clients(args, model, n_clients, jobs, process):
    # Made before the first is sent and read after the last has come: clients that end together do not wait for each other.
    bodies = [request_body(args, model, random.Random(f"{args.seed} {process} {i}")) for i in range(jobs)]
    queue = iter(bodies)
    results, errors = [], []

    async def client():
        for body in queue:
            try:
                results.append(await one(args, "/v1/completions", body))
            except (OSError, EOFError, ValueError) as error:
                errors.append({"error": repr(error)})

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return errors + [told(*result) for result in results]


def share(whole, parts, i):
    return whole // parts + (i < whole % parts)


def work(job):
    args, model, process = job
    n_clients, jobs = share(args.concurrency, args.processes, process), share(args.requests, args.processes, process)
    return asyncio.run(clients(args, model, n_clients, jobs, process))


WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part".split()


async def conversation(args, model):
    """Turns of a chat: tokens of the prompt, how many were cached, milliseconds to the first token, tokens of the answer."""
    rng = random.Random(f"{args.seed} chat")
    messages, turns = [], []
    for turn in range(args.turns):
        words = args.input if turn == 0 else args.turn
        messages.append({"role": "user", "content": " ".join(rng.choice(WORDS) for _ in range(words))})
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": args.output,
            "ignore_eos": True,
            "seed": turn,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if args.effort:
            body["reasoning_effort"] = args.effort
        start, status, arrived = await one(args, "/v1/chat/completions", body)
        if status != 200:
            raise ValueError(f"turn {turn}: {status} {b''.join(piece for _, piece in arrived)[:300]!r}")
        message, first, usage = {"role": "assistant", "content": "", "reasoning": ""}, None, None
        for when, value in events(arrived):
            if "error" in value:
                raise ValueError(f"turn {turn}: {value}")
            usage = value.get("usage") or usage
            first = first or (when if usage and usage["completion_tokens"] else None)
            for choice in value["choices"]:
                for part in ("content", "reasoning"):
                    message[part] += choice["delta"].get(part) or ""
        messages.append(message)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        turns.append((usage["prompt_tokens"], cached, 1e3 * (first - start), usage["completion_tokens"]))
    return turns


def chat(args, model):
    turns = asyncio.run(conversation(args, model))
    later = [first for _, _, first, _ in turns[1:]]
    if args.json:
        names = ("prompt_tokens", "cached_tokens", "first_token_ms", "answer_tokens")
        print(json.dumps({"schema": 1, "turns": [dict(zip(names, turn)) for turn in turns]}))
        return 0
    print("turn   prompt   cached   first token    answer")
    for i, (prompt, cached, first, answer) in enumerate(turns):
        print(f"{i + 1:4} {prompt:8} {cached:8} {first:10.1f} ms {answer:9}")
    if later:
        print(f"turns behind the first: p50 {percentile(later, 0.5):.1f} ms, at most {max(later):.1f} ms")
    return 0


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--key", default=os.environ.get("OPENAI_API_KEY"))
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--requests", type=int, help="default: four for each client")
    parser.add_argument("--vocab", type=int, default=190_000)
    parser.add_argument("--seed", type=int, default=1, help="another seed, other prompts")
    parser.add_argument("--turns", type=int, help="a conversation of so many turns instead")
    parser.add_argument("--turn", type=int, default=200, help="tokens of its later messages, about")
    parser.add_argument("--effort", help="its reasoning effort")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.requests = args.requests or 4 * args.concurrency
    args.processes = max(1, min(args.processes, args.concurrency))
    model = args.model
    if not model:
        headers = {"Authorization": f"Bearer {args.key}"} if args.key else {}
        listed = urllib.request.urlopen(urllib.request.Request(args.url + "/v1/models", headers=headers))
        model = json.load(listed)["data"][0]["id"]
    if args.turns:
        return chat(args, model)

    begin = time.perf_counter()
    with multiprocessing.Pool(args.processes) as pool:
        results = [
            r for part in pool.map(work, [(args, model, i) for i in range(args.processes)], chunksize=1) for r in part
        ]
    failed = [r["error"] for r in results if "error" in r]
    good = [r for r in results if "error" not in r and r["events"]]
    if not good:
        print(f"nothing was answered: {failed[:1]}", file=sys.stderr)
        return 1
    start, end = min(r["start"] for r in good), max(r["events"][-1][0] for r in good)
    first = [r["events"][0][0] - r["start"] for r in good]
    between, per_token = [], []
    for r in good:
        for (before, n_before), (now, n) in zip(r["events"], r["events"][1:]):
            between += [(now - before) / (n - n_before)] * (n - n_before)
        (t0, n0), (t1, n1) = r["events"][0], r["events"][-1]
        if n1 > n0:
            per_token.append((t1 - t0) / (n1 - n0))
    tokens = sum(r["tokens"] for r in good)
    n_events = sum(len(r["events"]) for r in good)
    figures = {
        "schema": 1,
        "concurrency": args.concurrency,
        "input_tokens": args.input,
        "output_tokens": args.output,
        "requests": len(good),
        "failed": len(failed),
        "seconds": end - start,
        "output_tokens_per_second": tokens / (end - start),
        "requests_per_second": len(good) / (end - start),
        "tokens_per_chunk": tokens / n_events,
        "ttft_ms": {
            "mean": 1e3 * sum(first) / len(first),
            "p50": 1e3 * percentile(first, 0.5),
            "p99": 1e3 * percentile(first, 0.99),
        },
        "itl_ms": {"p50": 1e3 * percentile(between, 0.5), "p99": 1e3 * percentile(between, 0.99)},
        "tpot_ms": {"p50": 1e3 * percentile(per_token, 0.5), "p99": 1e3 * percentile(per_token, 0.99)},
        "total_seconds": time.perf_counter() - begin,
    }
    if args.json:
        print(json.dumps(figures))
    else:
        print(
            f"{len(good)} requests of {args.input} + {args.output} tokens, {args.concurrency} at a time, {len(failed)} failed, {figures['seconds']:.2f} s"
        )
        print(
            f"output           {figures['output_tokens_per_second']:10.1f} tokens/s, {figures['tokens_per_chunk']:.2f} a chunk"
        )
        print(f"first token      p50 {figures['ttft_ms']['p50']:8.1f} ms   p99 {figures['ttft_ms']['p99']:8.1f} ms")
        print(f"between tokens   p50 {figures['itl_ms']['p50']:8.2f} ms   p99 {figures['itl_ms']['p99']:8.2f} ms")
        print(f"a request's mean p50 {figures['tpot_ms']['p50']:8.2f} ms   p99 {figures['tpot_ms']['p99']:8.2f} ms")
    for error in failed[:3]:
        print(f"failed: {error}", file=sys.stderr)
    short = [r["tokens"] for r in good if r["tokens"] != args.output]
    if short:
        print(f"{len(short)} answers were not {args.output} tokens long, the first {short[0]}", file=sys.stderr)
    return 1 if failed or short else 0


if __name__ == "__main__":
    sys.exit(main())
