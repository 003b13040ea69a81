"""LangChain's ChatOpenAI against a server REPLAY (replay.jsonl, key sk-test)."""

import json
import os
import urllib.request

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

HELLO = "Hello! 🙂 What can I do?"


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@tool
def get_weather(location: str) -> str:
    """The weather at a place."""
    return f"sunny in {location}"


def models():
    url = os.environ["REPLAY"] + "/v1"
    listed = json.load(
        urllib.request.urlopen(urllib.request.Request(url + "/models", headers={"Authorization": "Bearer sk-test"}))
    )
    for responses in [False, True]:
        yield responses, ChatOpenAI(
            model=listed["data"][0]["id"], base_url=url, api_key="sk-test", max_retries=0, use_responses_api=responses
        )


def invoke(responses, model):
    got = model.invoke("hi")
    assert got.text == HELLO, got
    usage = got.usage_metadata
    assert (
        usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        and usage["output_token_details"]["reasoning"] > 0
    ), usage


def stream(responses, model):
    whole = None
    for chunk in model.stream("hi", **({} if responses else {"stream_usage": True})):
        whole = chunk if whole is None else whole + chunk
    assert whole.text == HELLO and whole.usage_metadata["output_tokens"] > 0, whole


def call_a_tool(responses, model):
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage("How is the weather in Oslo?")]
    called = bound.invoke(messages)
    [call] = called.tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"location": "Oslo"}, call
    messages += [called, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert bound.invoke(messages).text == "It is sunny in Oslo."
    chunks = None
    for chunk in bound.stream("How is the weather in Oslo?"):
        chunks = chunk if chunks is None else chunks + chunk
    assert chunks.tool_calls[0]["args"] == {"location": "Oslo"}, chunks


def structured(responses, model):
    for method in ["json_schema", "json_mode"]:
        got = model.with_structured_output(Person, method=method).invoke("Name a person, as JSON")
        assert got == Person(name="Ada", age=36), got


for test in [invoke, stream, call_a_tool, structured]:
    for responses, model in models():
        name = f"{test.__name__.replace('_', ' ')}, over {'responses' if responses else 'chat completions'}"
        try:
            test(responses, model)
            print(f"ok      {name}", flush=True)
        except Exception as error:
            print(f"FAILED  {name}: {type(error).__name__}: {str(error)[:500]}", flush=True)
