"""Chat templates, rendered by this program and by transformers, for conversations of every kind.

    python chat_templates.py TEMPLATE...

A line for each template: `ok  NAME` where all prompts are alike, `FAILED  NAME` with the first difference. Where transformers
itself fails, anything is right here: it goes over what is none, say.
"""

import json
import pathlib
import subprocess
import sys

from server import binary
from transformers.utils.chat_template_utils import _compile_jinja_template

# In Jinja of Python a text that is `safe` escapes what is added to it, as if prompts were pages: `"` becomes `&#34;`.
KNOWN = {"meetkai-functionary-medium-v3.1.jinja": ["calls", "open calls", "tools", "a plain tool"]}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function(
    "get_weather",
    "Weather – «now».",
    {
        "location": {"type": "string", "description": "Where"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": ["integer", "null"]},
    },
    ["location"],
)
ADD = function(
    "add",
    "Adds.",
    {
        "a": {"type": "number"},
        "b": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"x": {"type": "boolean"}}},
    },
    ["a", "b"],
)
# For templates that write types as Python has them, and go round in circles with others.
PLAIN = function("get_time", "The time.", {"place": {"type": "string", "description": "Where"}}, ["place"])


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


HELLO = [say("user", "Hello")]
TURNS = [say("system", "Be brief. "), say("user", "  Hi é😀 <b> & 'x' \"q\"\n"), say("assistant", "Hi.\n"), say("user", "And?")]
THOUGHT = [say("user", "2+2?"), say("assistant", "4", thinking="Sum it.\n"), say("user", "3+3?")]
CALLED = [
    say("user", "Weather in Oslo?"),
    say("assistant", "", thinking="A tool.", tool_calls=[call("abcdefghi", "get_weather", {"location": "ø", "days": None})]),
    say("tool", '{"t": 3}', call=["abcdefghi", "get_weather"]),
    say("assistant", "It is 3."),
    say("user", "thanks"),
]
OPEN = [
    say("system", "Sys"),
    say("user", "Weather in Oslo and a sum?"),
    say(
        "assistant",
        "Let me look.",
        tool_calls=[
            call("abcdefghi", "get_weather", {"location": "Oslo"}),
            call("abcdefghj", "add", {"a": 1.5, "b": [1, 2], "o": {"x": True}}),
        ],
    ),
    say("tool", "3", call=["abcdefghi", "get_weather"]),
    say("tool", '"4.5"', call=["abcdefghj", "add"]),
]
WORDS = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}
CASES = {
    "hello": (HELLO, [], {}),
    "turns": (TURNS, [], {}),
    "a text that is closed": (TURNS[:3], [], {"add_generation_prompt": False}),
    "thoughts": (THOUGHT, [], {}),
    "no thoughts": (THOUGHT, [], {"enable_thinking": False}),
    "more thoughts": (THOUGHT, [], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "calls": (CALLED, [WEATHER], {}),
    "open calls": (OPEN, [WEATHER, ADD], {}),
    "calls without tools": (CALLED, [], {}),
    "tools": (TURNS, [WEATHER, ADD], {}),
    "a plain tool": (TURNS, [PLAIN], {"functions": "get_time(place)", "datetime": "1 Jan 2025"}),
    "documents": (HELLO, [], {"documents": [{"title": "A", "text": "b"}]}),
    "words": (TURNS, [], {"reasoning_effort": "low", "thinking": False, "builtin_tools": [], "date_string": "1 Jan 2025"}),
    "nothing": ([say("system", ""), say("user", "x"), say("assistant", "y"), say("user", "")], [], {}),
}


def job(messages, tools, words):
    words = {**WORDS, **words}
    is_closed = words.pop("add_generation_prompt", True) is False
    return {"messages": messages, "tools": tools, "words": words, "is_continued": is_closed}


def there(template, messages, tools, words):
    def message(said):
        said = dict(said)
        if thinking := said.get("thinking"):
            said["reasoning_content"] = thinking
        if called := said.pop("call", None):
            said["tool_call_id"], said["name"] = called
        return said

    given = {"tools": tools or None, "documents": None, "add_generation_prompt": True, **WORDS, **words}
    try:
        return template.render(messages=[message(said) for said in messages], **given)
    except Exception:
        return None


def difference(path):
    source = path.read_text()
    template = _compile_jinja_template(source)
    jobs = json.dumps({"template": source, "conversations": [job(*case) for case in CASES.values()]})
    ran = subprocess.run([binary(), "__chat-template"], input=jobs, capture_output=True, text=True)
    answer = json.loads(ran.stdout)
    if "Rendered" not in answer:
        return f"does not compile here: {answer}"
    n_compared = 0
    for (name, case), here in zip(CASES.items(), answer["Rendered"], strict=True):
        want = there(template, *case)
        n_compared += want is not None
        if want is None or here == {"Ok": want} or name in KNOWN.get(path.name, []):
            continue
        got = here.get("Ok")
        if got is None:
            return f"{name}: {here}"
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        return f"{name}: {got[max(0, at - 40) : at + 60]!r} for {want[max(0, at - 40) : at + 60]!r}"
    return None if n_compared else "transformers renders none of the conversations"


def main():
    failed = 0
    for path in map(pathlib.Path, sys.argv[1:]):
        why = difference(path)
        failed += why is not None
        print(f"FAILED  {path.stem}: {why}" if why else f"ok      {path.stem}", flush=True)
    sys.exit(failed > 0)


main()
