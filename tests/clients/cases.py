"""What the tests of the openai package share: what is asked for, and how tests are run.

    python openai_python.py [WORD...]     those whose names have one of the words, or all

A line for each: `ok      NAME` or `FAILED  NAME: why`. With TRACE in the environment a failure comes with its traceback.
"""

import os
import sys
import traceback

from pydantic import BaseModel

WEATHER = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
    "additionalProperties": False,
}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": WEATHER}}
]
TESTS = []


class Person(BaseModel):
    name: str
    age: int


def test(function):
    TESTS.append(function)
    return function


def user(text):
    return [{"role": "user", "content": text}]


def main():
    wanted = sys.argv[1:]
    if unknown := [word for word in wanted if not any(word in function.__name__ for function in TESTS)]:
        sys.exit(f"no test has {', '.join(unknown)} in its name")
    for function in TESTS:
        if wanted and not any(word in function.__name__ for word in wanted):
            continue
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"ok      {name}", flush=True)
        except Exception as error:
            print(f"FAILED  {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
