"""What drafts are worth, one request at a time: tokens for each second of the processor, and how many drafts were right.

    python server.py TINY --threads 1 -- python speculation.py
    python server.py TINY --threads 1 --speculate off -- python speculation.py

Texts that repeat and texts that do not, without a mask and under one: completions, chats whose headers are masked, and JSON
by a schema. Processor time is that of the server's threads but those of HTTP.
"""

import functools
import json
import os
import pathlib
import re
import sys
import urllib.request

URL, PID = os.environ["TINY"], os.environ["TINY_PID"]
ITEM = {
    "type": "object",
    "properties": {
        "location": {"type": "string", "enum": ["Oslo", "Rome"]},
        "unit": {"type": "string", "enum": ["celsius"]},
        "temperature": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["location", "unit", "temperature"],
    "additionalProperties": False,
}
ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": ITEM, "minItems": 12, "maxItems": 12}},
    "required": ["rows"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "rows", "schema": ROWS, "strict": True}}


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=600))


def completion(prompt, **more):
    return lambda seed: post("/v1/completions", {"prompt": prompt, "max_tokens": 400, "seed": seed, **more})


def chat(text, **more):
    body = {"messages": [{"role": "user", "content": text}], "max_completion_tokens": 600, **more}
    return lambda seed: post("/v1/chat/completions", {**body, "seed": seed})


@functools.cache
def story():
    begin = "Once upon a time"
    whole = completion(begin, temperature=0, max_tokens=200, ignore_eos=True)(0)["choices"][0]["text"]
    return f"{begin}{whole}\n{begin}"


def told_again(seed):
    """A story of which the prompt has the whole, and then its beginning."""
    return completion(story(), temperature=0, max_tokens=200, ignore_eos=True)(seed)


TEXTS = {
    "completion that repeats": told_again,
    "completion that does not": completion("Once upon a time", temperature=1, ignore_eos=True),
    "JSON, twelve rows alike": chat("weather", response_format=FORM, reasoning_effort="none", temperature=0),
    "JSON, rows drawn": chat("weather", response_format=FORM, reasoning_effort="none", temperature=1),
    "chat that does not repeat": chat("Tell me a story", temperature=1),
}


def processor():
    """Seconds of all threads that compute."""
    spent = 0
    for task in pathlib.Path(f"/proc/{PID}/task").iterdir():
        if (task / "comm").read_text().strip() != "http":
            spent += int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent


def drafts():
    text = urllib.request.urlopen(URL + "/metrics", timeout=30).read().decode()
    kinds = ("draft", "accepted")
    return [float(re.search(rf"spec_decode_num_{kind}_tokens_total\S* (\S+)", text)[1]) for kind in kinds]


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'':28} {'tokens':>7} {'s of processor':>15} {'tokens/s of it':>15} {'drafts':>7} {'right':>7}")
    for name, ask in TEXTS.items():
        ask(99)
        before, counted = processor(), drafts()
        tokens = sum(ask(seed)["usage"]["completion_tokens"] for seed in range(n))
        spent, (drafted, right) = processor() - before, (b - a for a, b in zip(counted, drafts()))
        print(f"{name:28} {tokens:7} {spent:15.3f} {tokens / spent:15.0f} {drafted:7.0f} {right:7.0f}", flush=True)


main()
