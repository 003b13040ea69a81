"""The requests that Open WebUI makes (backend/open_webui: routers/openai.py, routers/tasks.py, utils/middleware.py), without
it, since it brings PyTorch with it: REPLAY (replay.jsonl, key sk-test).

At the start it asks for the models. A message of a new chat is a stream with its usage; when that is over, title, tags and
follow-ups are asked for side by side, unstreamed and with `max_completion_tokens`.
"""

import concurrent.futures
import json
import os
import sys
import urllib.request

HELLO = "Hello! 🙂 What can I do?"
URL = os.environ["REPLAY"] + "/v1"


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-test"}
    headers |= {"X-OpenWebUI-User-Name": "user", "X-OpenWebUI-Chat-Id": "c1"}
    return urllib.request.urlopen(urllib.request.Request(URL + path, data, headers), timeout=120).read().decode()


def check(what, true):
    print(("ok      " if true else "FAILED  ") + f"Open WebUI's requests: {what}", flush=True)
    return bool(true)


def stream(model):
    """What its middleware makes of a stream: lines that begin with `data:`, text and reasoning of their deltas."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    body = {"stream": True, "model": model, "messages": messages, "stream_options": {"include_usage": True}}
    text, reasoning, usage, ends = "", "", None, []
    for line in ask("/chat/completions", body).split("\n"):
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if not data or data == "[DONE]":
            ends += [data] * bool(data)
            continue
        event = json.loads(data)
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
    return text, reasoning, usage, ends


def task(model):
    content = '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "..." }\n<chat_history>hi</chat_history>'
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    return json.loads(ask("/chat/completions", body))["choices"]


def main():
    models = json.loads(ask("/models"))["data"]
    good = [check("models have ids and owners", models and all(m["id"] and m["owned_by"] for m in models))]
    text, reasoning, usage, ends = stream(models[0]["id"])
    good += [
        check("a stream has its text, its reasoning and its end", (text, reasoning) == (HELLO, "The user greets.") and ends),
        check("and its usage", usage and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]),
    ]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = list(pool.map(task, [models[0]["id"]] * 3))
    whole = all(len(choices) == 1 and choices[0]["message"]["content"] == HELLO for choices in answers)
    good.append(check("title, tags and follow-ups, side by side", whole))
    return all(good)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
