"""Generated bodies, by schemathesis and OpenAI's own description of the API.

    python bodies.py OPENAPI SCHEMATHESIS SCRATCH LOG      the server is TINY; BODIES (default 2000) for each endpoint

The description is cut to the endpoints of this server and what they refer to. Checked: no answer is a 5xx, and every 200
fits the description.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

PATHS = {
    "/chat/completions": ["post"],
    "/completions": ["post"],
    "/responses": ["post"],
    "/models": ["get"],
    "/models/{model}": ["get"],
}


def texts_of(key, value):
    """All texts under a key, however deep in a JSON value."""
    if isinstance(value, dict):
        if isinstance(value.get(key), str):
            yield value[key]
        for inner in value.values():
            yield from texts_of(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(key, inner)


def cut(whole):
    paths = {path: {method: whole["paths"][path][method] for method in methods} for path, methods in PATHS.items()}
    kept, todo = {}, list(texts_of("$ref", paths))
    while todo:
        reference = todo.pop()
        _, _, kind, name = reference.split("/")
        if name in kept.setdefault(kind, {}):
            continue
        kept[kind][name] = whole["components"][kind][name]
        todo += texts_of("$ref", kept[kind][name])
    tell_null(kept["schemas"]["CreateCompletionResponse"])
    for path in paths.values():
        for method in path.values():
            stream = method["responses"]["200"]["content"].get("text/event-stream")
            if stream:
                stream["schema"] = event_of(stream["schema"])
    return {"openapi": whole["openapi"], "info": whole["info"], "paths": paths, "components": kept}


def tell_null(schema):
    """The first token of an `echo` has no log-probability: OpenAI sends `null`, and the description has numbers alone."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in ("token_logprobs", "top_logprobs") and "items" in value:
                value["items"] = {"anyOf": [value["items"], {"type": "null"}]}
            else:
                tell_null(value)
    elif isinstance(schema, list):
        for inner in schema:
            tell_null(inner)


def event_of(payload):
    """The description is of what an event carries; what is checked is the event that carries it."""
    carried = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
    done = {"properties": {"data": {"const": "[DONE]"}}}
    return {"if": done, "then": True, "else": {"type": "object", "required": ["data"], "properties": {"data": carried}}}


def main(openapi, program, scratch, whole):
    subset = scratch / "subset.json"
    subset.write_text(json.dumps(cut(json.loads(pathlib.Path(openapi).read_text()))))
    bodies = os.environ.get("BODIES", "2000")
    command = [
        program,
        "run",
        str(subset),
        "--url",
        os.environ["TINY"] + "/v1",
        "-H",
        "Authorization: Bearer x",
        "--phases",
        "fuzzing",
        "--mode",
        "all",
        "--checks",
        "not_a_server_error,response_schema_conformance",
        "--max-examples",
        bodies,
        # Shrinking a failure, and keeping the best examples in a database, take longer than all else together.
        "--no-shrink",
        "--generation-database",
        "none",
        "--continue-on-failure",
        "--no-color",
        "--workers",
        "2",
        "--request-timeout",
        "60",
        "--suppress-health-check",
        "all",
    ]
    if seed := os.environ.get("SEED"):
        command += ["--seed", seed]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    said = done.stdout + done.stderr
    pathlib.Path(whole).write_text(said)
    print("\n".join(line[:240] for line in said.splitlines()[-80:]))
    print(f"all of it: {whole}")
    count = re.search(r"(\d[\d,]*) generated", said)
    print(
        f"{'ok      ' if done.returncode == 0 and count else 'FAILED  '}{count[0] if count else 'no'} bodies, exit {done.returncode}"
    )
    metrics = urllib.request.urlopen(os.environ["TINY"] + "/metrics").read().decode()
    answered = re.findall(r'^gptoss_http_responses_total\{.*status="(\d+)"\} (\d+)$', metrics, re.M)
    statuses = {status: int(n) for status, n in sorted(answered) if n != "0"}
    print(f"answers by status: {statuses}")
    busy = {name: value for name, value in re.findall(r"^(gptoss_num_requests_\w+)\S* (\S+)$", metrics, re.M)}
    print(f"{'ok      ' if busy and not any(map(float, busy.values())) else 'FAILED  '}nothing runs any more: {busy}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4])
