"""Measures a server of OpenAI's API: output tokens a second, time to first token, time between tokens.

    python bench_serve.py --url http://127.0.0.1:8000 --concurrency 32 --input 512 --output 256 [--requests 128] [--json]

Needs Python alone. Prompts are random ids of `--vocab`, all different, so that no cached prefix helps, and sent to
/v1/completions; `ignore_eos` makes all answers `--output` long. Each of `--concurrency` clients asks again when it has its
answer. What several tokens came in is one chunk: the time between tokens is the time between chunks over the tokens of the
later one. `--processes` share the clients, so that what is measured is not Python.
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


async def one(args, model, prompt, seed):
    """One request: when it was sent, and for each event that carried a token, when it came and how many there were then."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": args.output,
        "ignore_eos": True,
        "temperature": 1,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    start = time.perf_counter()
    status, headers, reader, writer = await ask(args.url, "/v1/completions", body, args.key)
    arrived = []
    async for piece in chunks(reader, headers):
        arrived.append((time.perf_counter(), piece))
    writer.close()
    text = b"".join(piece for _, piece in arrived)
    if status != 200 or b"data: [DONE]" not in text:
        return {"error": f"{status} {text[-300:]!r}"}
    # Parsed only now, so that it takes no time from others' arrivals but at the end.
    events, counted, seen, line_start = [], 0, b"", 0
    for when, piece in arrived:
        seen += piece
        while (end := seen.find(b"\n\n", line_start)) >= 0:
            event, line_start = seen[line_start:end], end + 2
            if not event.startswith(b"data: {"):
                continue
            value = json.loads(event[6:])
            usage = value.get("usage")
            total = (
                usage["completion_tokens"]
                if usage
                else counted + bool(value["choices"] and value["choices"][0]["text"])
            )
            if total > counted:
                events.append((when, total))
                counted = total
    return {"start": start, "events": events, "tokens": counted}


async def clients(args, model, n_clients, jobs, process):
    queue = iter(range(jobs))
    results = []

    async def client():
        for i in queue:
            random_ids = random.Random(f"{args.seed} {process} {i}")
            prompt = [random_ids.randrange(args.vocab) for _ in range(args.input)]
            try:
                results.append(await one(args, model, prompt, random_ids.randrange(1 << 31)))
            except (OSError, EOFError, ValueError) as error:
                results.append({"error": repr(error)})

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return results


def share(whole, parts, i):
    return whole // parts + (i < whole % parts)


def work(job):
    args, model, process = job
    n_clients, jobs = share(args.concurrency, args.processes, process), share(args.requests, args.processes, process)
    return asyncio.run(clients(args, model, n_clients, jobs, process))


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
    told = {
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
        print(json.dumps(told))
    else:
        print(
            f"{len(good)} requests of {args.input} + {args.output} tokens, {args.concurrency} at a time, {len(failed)} failed, {told['seconds']:.2f} s"
        )
        print(
            f"output           {told['output_tokens_per_second']:10.1f} tokens/s, {told['tokens_per_chunk']:.2f} a chunk"
        )
        print(f"first token      p50 {told['ttft_ms']['p50']:8.1f} ms   p99 {told['ttft_ms']['p99']:8.1f} ms")
        print(f"between tokens   p50 {told['itl_ms']['p50']:8.2f} ms   p99 {told['itl_ms']['p99']:8.2f} ms")
        print(f"a request's mean p50 {told['tpot_ms']['p50']:8.2f} ms   p99 {told['tpot_ms']['p99']:8.2f} ms")
    for error in failed[:3]:
        print(f"failed: {error}", file=sys.stderr)
    short = [r["tokens"] for r in good if r["tokens"] != args.output]
    if short:
        print(f"{len(short)} answers were not {args.output} tokens long, the first {short[0]}", file=sys.stderr)
    return 1 if failed or short else 0


if __name__ == "__main__":
    sys.exit(main())
