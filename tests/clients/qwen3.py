"""The openai package for Python against a model that speaks Qwen 3's format (qwen3_model.py): REPLAY answers by qwen3.jsonl,
MODEL is the model itself, whose weights are random."""

import json
import os

import openai
from cases import CHAT_TOOLS, WEATHER, Person, main, test, user

replay = openai.OpenAI(base_url=os.environ["REPLAY"] + "/v1", api_key="any", max_retries=0)
model = openai.OpenAI(base_url=os.environ["MODEL"] + "/v1", api_key="any", max_retries=0)
NAME = "qwen3"
FLAT_TOOLS = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": WEATHER}]


def chat(text, client=replay, **more):
    return client.chat.completions.create(model=NAME, messages=user(text), **more)


@test
def thoughts_are_reasoning():
    choice = chat("hi").choices[0]
    assert choice.message.content == "Hello! 🙂 What can I do?" and choice.finish_reason == "stop"
    assert choice.message.reasoning == choice.message.reasoning_content == "The user greets."
    usage = chat("hi").usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


@test
def a_stream_joined_is_the_whole():
    deltas = [chunk.choices[0].delta for chunk in chat("hi", stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == "Hello! 🙂 What can I do?"
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "The user greets."


@test
def the_template_is_told_not_to_think():
    for more in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        message = chat("hi", **more).choices[0].message
        assert message.content == "At once." and getattr(message, "reasoning", None) is None, message


@test
def a_tool_is_called_and_its_result_taken():
    messages = user("How is the weather in Oslo?")
    got = replay.chat.completions.create(model=NAME, messages=messages, tools=CHAT_TOOLS).choices[0]
    [call] = got.message.tool_calls
    assert got.finish_reason == "tool_calls" and got.message.content == "I look it up."
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["location"].startswith("Oslo")
    messages += [
        got.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    got = replay.chat.completions.create(model=NAME, messages=messages, tools=CHAT_TOOLS).choices[0]
    assert got.message.content == "It is sunny in Oslo." and got.finish_reason == "stop"


@test
def arguments_are_streamed_in_pieces():
    calls = [c.choices[0].delta.tool_calls for c in chat("weather in Oslo", tools=CHAT_TOOLS, stream=True) if c.choices[0].delta.tool_calls]
    first, *pieces = [call for [call] in calls]
    assert first.id and first.type == "function" and first.function.name == "get_weather"
    texts = [piece.function.arguments for piece in pieces]
    assert len(texts) > 3 and all(piece.id is None and piece.index == 0 for piece in pieces), texts
    assert json.loads("".join(texts)) == {"location": "Oslo, where it is often cold"}
    with replay.chat.completions.stream(model=NAME, messages=user("weather in Oslo"), tools=CHAT_TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 3 and "tool_calls.function.arguments.done" in kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)["location"].startswith("Oslo")


@test
def calls_come_side_by_side_unless_one_is_wanted():
    message = chat("The weather in Oslo and Rome?", tools=CHAT_TOOLS).choices[0].message
    places = [json.loads(call.function.arguments)["location"] for call in message.tool_calls]
    assert places == ["Oslo", "Rome"] and len({call.id for call in message.tool_calls}) == 2
    one = chat("The weather in Oslo and Rome?", tools=CHAT_TOOLS, parallel_tool_calls=False).choices[0]
    [call] = one.message.tool_calls
    assert json.loads(call.function.arguments) == {"location": "Oslo"} and one.finish_reason == "tool_calls"
    indices = {
        call.index
        for chunk in chat("The weather in Oslo and Rome?", tools=CHAT_TOOLS, stream=True)
        for call in chunk.choices[0].delta.tool_calls or []
    }
    assert indices == {0, 1}


@test
def of_a_call_that_breaks_nothing_is_lost():
    message = chat("Break off", tools=CHAT_TOOLS).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"location": "Oslo"}
    assert message.content == "</tool_call> and more"


@test
def a_class_is_what_an_answer_is_parsed_to():
    got = replay.chat.completions.parse(model=NAME, messages=user("Name a person"), response_format=Person)
    assert got.choices[0].message.parsed == Person(name="Ada", age=36)


@test
def responses_have_reasoning_messages_and_calls():
    got = replay.responses.create(model=NAME, input="How is the weather in Oslo?", tools=FLAT_TOOLS)
    assert [item.type for item in got.output] == ["reasoning", "message", "function_call"]
    call = got.output[2]
    next_ = replay.responses.create(
        model=NAME, previous_response_id=got.id, tools=FLAT_TOOLS,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
    )
    assert next_.output_text == "It is sunny in Oslo."
    pieces = [
        event.delta
        for event in replay.responses.create(model=NAME, input="weather in Oslo", tools=FLAT_TOOLS, stream=True)
        if event.type == "response.function_call_arguments.delta"
    ]
    assert len(pieces) > 3 and json.loads("".join(pieces)) == {"location": "Oslo, where it is often cold"}
    one = replay.responses.create(model=NAME, input="Oslo and Rome", tools=FLAT_TOOLS, parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["reasoning", "function_call"] and one.parallel_tool_calls is False


@test
def the_model_itself_keeps_to_schemas():
    schema = {"name": "pet", "strict": True, "schema": {
        "type": "object", "additionalProperties": False, "required": ["kind", "n"],
        "properties": {"kind": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 1, "maximum": 9}},
    }}
    for seed in range(3):
        got = chat("A pet", model, seed=seed, max_tokens=300, reasoning_effort="none",
                   response_format={"type": "json_schema", "json_schema": schema}).choices[0]
        pet = json.loads(got.message.content)
        assert pet["kind"] in ("cat", "dog") and 1 <= pet["n"] <= 9 and got.finish_reason == "stop", got


@test
def the_model_itself_calls_the_tool_that_it_must():
    strict = [{"type": "function", "function": CHAT_TOOLS[0]["function"] | {"strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "required": ["unit"], "properties": {"unit": {"enum": ["C", "F"]}}}}}]
    for seed in range(3):
        got = chat("Call", model, seed=seed, max_tokens=400, tools=strict, tool_choice="required",
                   parallel_tool_calls=False, reasoning_effort="none").choices[0]
        [call] = got.message.tool_calls
        assert got.finish_reason == "tool_calls" and json.loads(call.function.arguments)["unit"] in ("C", "F"), got


@test
def the_model_itself_streams_what_it_gives_whole():
    for text in ("hi", "Once upon a time"):
        whole = chat(text, model, seed=5, temperature=0, max_tokens=40).choices[0]
        deltas = [chunk.choices[0].delta for chunk in chat(text, model, seed=5, temperature=0, max_tokens=40, stream=True)]
        assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    texts = model.completions.create(model=NAME, prompt="Once", max_tokens=8, echo=True)
    assert texts.choices[0].text.startswith("Once") and texts.usage.completion_tokens == 8


if __name__ == "__main__":
    main()
