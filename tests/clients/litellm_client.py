"""LiteLLM against a server: REPLAY (replay.jsonl, key sk-test)."""

import json
import os
import urllib.request

import litellm

URL = os.environ["REPLAY"] + "/v1"
NAME = json.load(
    urllib.request.urlopen(urllib.request.Request(URL + "/models", headers={"Authorization": "Bearer sk-test"}))
)["data"][0]["id"]
WITH = {"model": "openai/" + NAME, "api_base": URL, "api_key": "sk-test", "num_retries": 0}
HELLO = "Hello! 🙂 What can I do?"
WEATHER = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]


def user(text):
    return [{"role": "user", "content": text}]


def a_chat_is_answered():
    got = litellm.completion(messages=user("hi"), **WITH)
    assert got.choices[0].message.content == HELLO and got.usage.completion_tokens > 0, got
    assert got.choices[0].message.reasoning_content == "The user greets.", got


def a_chat_is_streamed():
    chunks = list(litellm.completion(messages=user("hi"), stream=True, stream_options={"include_usage": True}, **WITH))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == HELLO
    assert (
        "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices)
        == "The user greets."
    )


def a_tool_is_called_and_its_result_taken():
    messages = user("How is the weather in Oslo?")
    got = litellm.completion(messages=messages, tools=TOOLS, **WITH).choices[0]
    [call] = got.message.tool_calls
    assert got.finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"location": "Oslo"}, got
    messages += [got.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert (
        litellm.completion(messages=messages, tools=TOOLS, **WITH).choices[0].message.content == "It is sunny in Oslo."
    )


def a_streamed_call_is_put_together():
    chunks = list(litellm.completion(messages=user("How is the weather in Oslo?"), tools=TOOLS, stream=True, **WITH))
    whole = litellm.stream_chunk_builder(chunks)
    assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments) == {"location": "Oslo"}, whole


def a_response_is_made():
    got = litellm.responses(input="hi", **{key: value for key, value in WITH.items() if key != "num_retries"})
    assert [item.type for item in got.output] == ["reasoning", "message"] and got.output[1].content[
        0
    ].text == HELLO, got


def errors_are_openais():
    try:
        litellm.completion(messages=user("hi"), temperature=3, **WITH)
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature of 3 was taken")


for test in [
    a_chat_is_answered,
    a_chat_is_streamed,
    a_tool_is_called_and_its_result_taken,
    a_streamed_call_is_put_together,
    a_response_is_made,
    errors_are_openais,
]:
    try:
        test()
        print(f"ok      {test.__name__.replace('_', ' ')}", flush=True)
    except Exception as error:
        print(f"FAILED  {test.__name__.replace('_', ' ')}: {type(error).__name__}: {str(error)[:500]}", flush=True)
