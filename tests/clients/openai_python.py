"""The openai package for Python against a server: REPLAY (replay.jsonl, key sk-test) and TINY (the built-in model)."""

import asyncio
import json
import os
import time
import urllib.request

import openai
from cases import CHAT_TOOLS, WEATHER, Person, main, test, user

REPLAY, TINY = os.environ["REPLAY"] + "/v1", os.environ["TINY"] + "/v1"
client = openai.OpenAI(base_url=REPLAY, api_key="sk-test", max_retries=0)
tiny = openai.OpenAI(base_url=TINY, api_key="any", max_retries=0)
MODEL = client.models.list().data[0].id
TINY_MODEL = tiny.models.list().data[0].id
HELLO = "Hello! 🙂 What can I do?"
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "The weather", "parameters": WEATHER, "strict": True}
]


def raises(kind, function, **expected):
    try:
        function()
    except kind as error:
        assert type(error) is kind, f"{type(error)} and not {kind}"
        for name, value in expected.items():
            assert getattr(error, name) == value, f"{name} is {getattr(error, name)!r} and not {value!r}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def metric(base, name):
    text = (
        urllib.request.urlopen(
            urllib.request.Request(base.removesuffix("/v1") + "/metrics", headers={"Authorization": "Bearer sk-test"})
        )
        .read()
        .decode()
    )
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def idle(base, seconds=5):
    end = time.monotonic() + seconds
    while metric(base, "gptoss_num_requests_running") + metric(base, "gptoss_num_requests_waiting"):
        assert time.monotonic() < end, "a request that was left still runs"
        time.sleep(0.05)


@test
def models_are_listed_and_found_by_name():
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-unknown"), code="model_not_found")


@test
def a_chat_is_answered():
    got = client.chat.completions.create(model=MODEL, messages=user("hi"))
    [choice] = got.choices
    assert got.object == "chat.completion" and got.id.startswith("chatcmpl-") and got.model == MODEL
    assert choice.message.content == HELLO and choice.finish_reason == "stop" and choice.message.tool_calls is None
    assert choice.message.reasoning == choice.message.reasoning_content == "The user greets."
    usage = got.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


@test
def a_chat_is_streamed():
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=user("hi"), stream=True, stream_options={"include_usage": True}
        )
    )
    *deltas, last = chunks
    assert last.choices == [] and last.usage.completion_tokens > 0 and all(c.usage is None for c in deltas)
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1
    assert deltas[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in deltas) == HELLO
    for name in ("reasoning", "reasoning_content"):
        assert "".join(getattr(c.choices[0].delta, name, None) or "" for c in deltas) == "The user greets."
    assert [c.choices[0].finish_reason for c in deltas if c.choices[0].finish_reason] == ["stop"]


@test
def the_chat_stream_helper_gathers_what_create_gives():
    with client.chat.completions.stream(model=MODEL, messages=user("hi")) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content == HELLO


@test
def a_tool_is_called_and_its_result_taken():
    messages = user("How is the weather in Oslo?")
    got = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS).choices[0]
    [call] = got.message.tool_calls
    assert got.finish_reason == "tool_calls" and call.function.name == "get_weather" and got.message.content is None
    assert json.loads(call.function.arguments) == {"location": "Oslo"}
    messages += [
        got.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    got = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS).choices[0]
    assert got.message.content == "It is sunny in Oslo." and got.finish_reason == "stop"
    messages[-1]["tool_call_id"] = "call_unknown"
    raises(
        openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
    )


@test
def a_tool_call_is_streamed():
    asked = {"model": MODEL, "messages": user("How is the weather in Oslo, and say what you do"), "tools": CHAT_TOOLS}
    whole = client.chat.completions.create(**asked).choices[0].message
    with client.chat.completions.stream(**asked) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    assert message.content == whole.content == "I look it up."
    assert message.tool_calls[0].function.arguments == whole.tool_calls[0].function.arguments == '{"location": "Oslo"}'
    assert any(e.type == "tool_calls.function.arguments.done" and e.arguments == '{"location": "Oslo"}' for e in events)
    names = [
        c.function.name
        for e in events
        if e.type == "chunk" and e.chunk.choices
        for c in e.chunk.choices[0].delta.tool_calls or []
        if c.function.name
    ]
    assert names == ["get_weather"], names


@test
def a_chat_is_parsed():
    got = client.chat.completions.parse(model=MODEL, messages=user("Name a person"), response_format=Person)
    assert got.choices[0].message.parsed == Person(name="Ada", age=36)
    with client.chat.completions.stream(model=MODEL, messages=user("Name a person"), response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)


@test
def a_chat_is_cut_where_asked():
    got = client.chat.completions.create(model=MODEL, messages=user("hi"), max_completion_tokens=5)
    assert got.choices[0].finish_reason == "length" and got.usage.completion_tokens == 5
    assert got.choices[0].message.content == "" and "The user greets.".startswith(got.choices[0].message.reasoning)
    got = client.chat.completions.create(model=MODEL, messages=user("hi"), stop=["What"])
    assert got.choices[0].message.content == "Hello! 🙂 " and got.choices[0].finish_reason == "stop"
    got = client.chat.completions.create(model=MODEL, messages=user("Think too long")).choices[0]
    assert (
        got.finish_reason == "length"
        and got.message.content == ""
        and got.message.reasoning == "On the one hand, on the other"
    )
    raises(
        openai.LengthFinishReasonError,
        lambda: client.chat.completions.parse(model=MODEL, messages=user("Think too long"), response_format=Person),
    )


@test
def log_probabilities_are_of_the_content():
    got = client.chat.completions.create(model=MODEL, messages=user("hi"), logprobs=True, top_logprobs=1).choices[0]
    assert b"".join(bytes(t.bytes) for t in got.logprobs.content).decode() == HELLO
    chunks = client.chat.completions.create(
        model=MODEL, messages=user("hi"), logprobs=True, top_logprobs=1, stream=True
    )
    streamed = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content or []]
    assert streamed == got.logprobs.content


@test
def several_choices_come_of_one_request():
    got = client.chat.completions.create(model=MODEL, messages=user("hi"), n=3)
    assert [(c.index, c.message.content) for c in got.choices] == [(0, HELLO), (1, HELLO), (2, HELLO)]
    texts = {}
    for chunk in client.chat.completions.create(model=MODEL, messages=user("hi"), n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert texts == {0: HELLO, 1: HELLO}


@test
def a_response_is_made():
    got = client.responses.create(model=MODEL, input="hi", instructions="Be brief.")
    assert (
        got.status == "completed"
        and got.output_text == HELLO
        and [i.type for i in got.output] == ["reasoning", "message"]
    )
    assert got.output[0].content[0].text == "The user greets." and got.output[0].summary == []
    assert got.instructions == "Be brief." and got.error is None and got.incomplete_details is None
    assert (
        got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens
        and got.usage.output_tokens_details.reasoning_tokens > 0
    )


@test
def a_response_is_streamed_in_order():
    for text in ["hi", "How is the weather in Oslo, and say what you do", "Name a person"]:
        with client.responses.stream(model=MODEL, input=text, tools=TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"] and events[
            -1
        ].type == "response.completed"
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == final.output_text
        whole = client.responses.create(model=MODEL, input=text, tools=TOOLS)
        bare = lambda response: [
            i.model_dump(
                exclude={"id": True, "call_id": True, "parsed_arguments": True, "content": {"__all__": {"parsed"}}}
            )
            for i in response.output
        ]
        assert bare(final) == bare(whole), (bare(final), bare(whole))


@test
def a_response_calls_a_tool_and_goes_on():
    first = client.responses.create(model=MODEL, input="How is the weather in Oslo?", tools=TOOLS)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (
        call.name == "get_weather" and json.loads(call.arguments) == {"location": "Oslo"} and call.status == "completed"
    )
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    got = client.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=TOOLS)
    assert got.output_text == "It is sunny in Oslo." and got.previous_response_id == first.id
    items = [
        {"role": "user", "content": "How is the weather in Oslo?"},
        *[item.model_dump() for item in first.output],
        result,
    ]
    assert (
        client.responses.create(model=MODEL, input=items, tools=TOOLS, store=False).output_text
        == "It is sunny in Oslo."
    )


@test
def a_response_is_parsed():
    got = client.responses.parse(model=MODEL, input="Name a person", text_format=Person)
    assert got.output_parsed == Person(name="Ada", age=36)


@test
def a_cut_response_is_incomplete():
    got = client.responses.create(model=MODEL, input="hi", max_output_tokens=5)
    assert (
        got.status == "incomplete"
        and got.incomplete_details.reason == "max_output_tokens"
        and got.usage.output_tokens == 5
    )
    events = list(client.responses.create(model=MODEL, input="hi", max_output_tokens=5, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.status == "incomplete"


@test
def stored_responses_are_found_until_they_are_deleted():
    made = client.responses.create(model=MODEL, input="hi")
    assert client.responses.retrieve(made.id).output_text == HELLO
    assert client.responses.input_items.list(made.id).data[0].role == "user"
    client.responses.delete(made.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(made.id))
    raises(
        openai.BadRequestError,
        lambda: client.responses.create(model=MODEL, input="hi", previous_response_id="resp_0"),
        code="previous_response_not_found",
        param="previous_response_id",
    )
    unstored = client.responses.create(model=MODEL, input="hi", store=False)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(unstored.id))


@test
def wrong_requests_are_told_what_is_wrong():
    chat = client.chat.completions.create
    raises(openai.NotFoundError, lambda: chat(model="gpt-unknown", messages=user("hi")), code="model_not_found")
    for more, param in [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "hi"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": user("hi"), "temperature": 3}, "temperature"),
        ({"messages": user("hi"), "top_p": "much"}, "top_p"),
        ({"messages": user("hi"), "n": 0}, "n"),
    ]:
        error = raises(
            openai.BadRequestError, lambda: chat(model=MODEL, **more), type="invalid_request_error", param=param
        )
        assert isinstance(error.code, str) and error.request_id
    raises(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input=[{"type": "unheard_of"}]))
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    raises(
        openai.BadRequestError,
        lambda: chat(model=MODEL, messages=user("hi"), response_format=schema),
        code="invalid_json_schema",
    )
    raises(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="hi"))
    raises(
        openai.AuthenticationError,
        lambda: openai.OpenAI(base_url=REPLAY, api_key="sk-wrong", max_retries=0).models.list(),
        code="invalid_api_key",
    )


@test
def an_engine_that_fails_is_told_in_the_stream_too():
    stream = client.chat.completions.create(model=MODEL, messages=user("Fail, please"), stream=True)
    raises(openai.APIError, lambda: list(stream))
    events = list(client.responses.create(model=MODEL, input="Fail, please", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.error is not None, events[-1]


@test
def a_client_that_does_not_wait_frees_its_place():
    impatient = client.with_options(timeout=0.5)
    raises(
        openai.APITimeoutError, lambda: impatient.chat.completions.create(model=MODEL, messages=user("Answer slowly"))
    )
    idle(REPLAY)
    stream = client.chat.completions.create(model=MODEL, messages=user("Answer slowly"), stream=True)
    next(iter(stream))
    stream.close()
    idle(REPLAY)


@test
def the_first_words_come_before_the_last_are_made():
    begin = time.monotonic()
    times = [
        time.monotonic() - begin
        for c in client.chat.completions.create(model=MODEL, messages=user("Answer slowly"), stream=True)
        if c.choices and c.choices[0].delta.content
    ]
    # Thirteen tokens, 0.3 s apart: one could only come with the last if something held them back.
    assert len(times) >= 9 and times[-1] - times[0] > 1.5, times


@test
def many_clients_get_their_own_answers():
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=REPLAY, api_key="sk-test") as many:
            asked = [("hi", HELLO), ("Name a person", '{"name": "Ada", "age": 36}')] * 20
            got = await asyncio.gather(
                *(many.chat.completions.create(model=MODEL, messages=user(text)) for text, _ in asked)
            )
            assert [g.choices[0].message.content for g in got] == [answer for _, answer in asked]

    asyncio.run(all_of_them())


@test
def a_text_is_completed():
    asked = {"model": TINY_MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    got = tiny.completions.create(**asked)
    assert (
        got.object == "text_completion"
        and got.choices[0].finish_reason == "length"
        and got.usage.completion_tokens == 12
    )
    assert got.choices[0].text.startswith(", there was a little girl"), got.choices[0].text
    assert "".join(c.choices[0].text for c in tiny.completions.create(**asked, stream=True)) == got.choices[0].text
    assert tiny.completions.create(**asked, echo=True).choices[0].text == "Once upon a time" + got.choices[0].text
    assert tiny.completions.create(**asked, stop=" little").choices[0].text == got.choices[0].text.split(" little")[0]
    several = tiny.completions.create(**{**asked, "prompt": ["Once upon a time", "One day"]})
    assert [c.index for c in several.choices] == [0, 1] and several.choices[0].text == got.choices[0].text


@test
def completions_tell_log_probabilities():
    got = tiny.completions.create(
        model=TINY_MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2
    ).choices[0]
    probabilities = got.logprobs
    assert "".join(probabilities.tokens) == got.text and all(value <= 0 for value in probabilities.token_logprobs)
    assert all(
        len(top) >= 2 and abs(max(top.values()) - value) < 1e-4
        for top, value in zip(probabilities.top_logprobs, probabilities.token_logprobs)
    )


@test
def a_seed_gives_the_same_text_again():
    def say(seed):
        return (
            tiny.completions.create(model=TINY_MODEL, prompt="One day", max_tokens=24, temperature=1, seed=seed)
            .choices[0]
            .text
        )

    assert say(7) == say(7) and say(-7) == say(-7) and len({say(seed) for seed in range(1, 6)}) > 1


@test
def a_prompt_beyond_the_context_is_refused_with_both_numbers():
    error = raises(
        openai.BadRequestError,
        lambda: tiny.chat.completions.create(model=TINY_MODEL, messages=user("word " * 40000)),
        code="context_length_exceeded",
    )
    assert sum(c.isdigit() for c in error.message) > 5, error.message


@test
def more_tokens_than_fit_are_no_error():
    # opencode asks for 32,000 whatever the context is.
    got = tiny.chat.completions.create(model=TINY_MODEL, messages=user("hi"), max_tokens=32000, stop=["."], seed=1)
    assert got.choices[0].finish_reason in ("stop", "length", "tool_calls")


@test
def the_tiny_model_writes_what_a_schema_asks_for():
    for seed in range(5):
        got = tiny.chat.completions.parse(
            model=TINY_MODEL, messages=user("Who?"), response_format=Person, seed=seed, max_tokens=2000, **SHORT
        )
        assert isinstance(got.choices[0].message.parsed, Person)


@test
def the_tiny_model_calls_the_tool_that_it_must():
    for seed in range(5):
        got = tiny.chat.completions.create(
            model=TINY_MODEL,
            messages=user("Weather?"),
            tools=CHAT_TOOLS,
            tool_choice="required",
            seed=seed,
            max_tokens=2000,
            **SHORT,
        )
        if got.choices[0].finish_reason == "length":
            continue
        [call] = got.choices[0].message.tool_calls
        assert call.function.name == "get_weather" and isinstance(json.loads(call.function.arguments), dict)


# The tiny model does not know when to end a text: this keeps its reasoning away.
SHORT = {"reasoning_effort": "none"}


if __name__ == "__main__":
    main()
