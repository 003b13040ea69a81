"""Random JSON schemas, answered by the built-in model: what comes is valid, and the same with drafts and without.

    python server.py OFF --speculate off -- python server.py TINY -- python schemas.py [1000]

Half of them are the form of an answer, half are the parameters of a tool that must be called. An answer that reached its
limit of tokens is not complete, and is only compared; so many are asked that the number is of complete ones. Needs the package jsonschema-rs.
"""

import json
import os
import random
import sys
import urllib.error
import urllib.request

import jsonschema_rs

WORDS = ["red", "kite", "park", "Lily", "Tom", "a b", "ö", "10", 'q"q']


def leaf(rng):
    kind = rng.randrange(8)
    low = rng.randrange(-50, 50)
    return [
        {"type": "string", "maxLength": rng.randrange(1, 12)},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(0, 1000)},
        {"type": "number", "minimum": low, "maximum": low + 7},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": rng.sample(WORDS + [1, 2.5, True, None], rng.randrange(1, 5))},
        {"const": rng.choice(WORDS)},
        {"type": "string", "pattern": rng.choice(["^[a-z]{1,4}$", "^[0-9]{3}-[0-9]{2}$", "^(yes|no)$"])},
    ][kind]


def schema(rng, depth=0):
    kind = rng.randrange(10)
    if depth > 2 or kind < 4:
        return leaf(rng)
    if kind < 6:
        least = rng.randrange(0, 3)
        return {"type": "array", "items": schema(rng, depth + 1), "minItems": least, "maxItems": least + rng.randrange(0, 3)}
    if kind < 7:
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 5}, {"type": "integer", "minimum": 0, "maximum": 9}]}
    return an_object(rng, depth)


def an_object(rng, depth=0):
    names = rng.sample(["location", "unit", "n", "days", "rows", "is it", "ö"], rng.randrange(1, 5))
    required = [name for name in names if rng.random() < 0.7]
    properties = {name: schema(rng, depth + 1) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def ask(url, body):
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        return json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]
    except urllib.error.HTTPError as error:
        return {"error": error.read().decode()[:300]}


def body_of(form, i):
    body = {"messages": [{"role": "user", "content": f"Tell me {i}"}], "seed": i, "max_completion_tokens": 500}
    if i % 2:
        function = {"name": "f", "parameters": form, "strict": True}
        return {**body, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": form, "strict": True}}
    return {**body, "response_format": wanted, "reasoning_effort": "none"}


def text_of(choice):
    calls = choice["message"].get("tool_calls")
    return calls[0]["function"]["arguments"] if calls else choice["message"]["content"]


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rng, counts, wrong = random.Random(1), {"complete": 0, "cut": 0}, []
    for i in range(3 * n):
        if counts["complete"] >= n:
            break
        form = an_object(rng)
        while len(json.dumps(form)) > 500:  # the model's context is short
            form = an_object(rng)
        body = body_of(form, i)
        choice = ask(os.environ["TINY"], body)
        if "OFF" in os.environ:
            other = ask(os.environ["OFF"], body)
            same = [(c.get("finish_reason"), c.get("error") or text_of(c)) for c in (choice, other)]
            if same[0] != same[1]:
                wrong.append(f"{i}: with drafts {same[0]}, without {same[1]}")
        if "error" in choice:
            wrong.append(f"{i}: {choice['error']}: {json.dumps(form)}")
        elif choice["finish_reason"] == "length":
            counts["cut"] += 1
        else:
            counts["complete"] += 1
            try:
                jsonschema_rs.Draft202012Validator(form).validate(json.loads(text_of(choice)))
            except (ValueError, jsonschema_rs.ValidationError) as error:
                wrong.append(f"{i}: {text_of(choice)} for {json.dumps(form)}: {error}")
    for what in wrong[:10]:
        print("   ", what[:600])
    enough = counts["complete"] >= n
    compared = ", the same with drafts and without" if "OFF" in os.environ else ""
    ok = not wrong and enough
    print(f"{'ok      ' if ok else 'FAILED  '}random schemas: {counts}, {len(wrong)} wrong{compared}")
    metrics = urllib.request.urlopen(os.environ["TINY"] + "/metrics").read().decode()
    for line in metrics.splitlines():
        if line.startswith("gptoss_spec_decode"):
            print(line)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
