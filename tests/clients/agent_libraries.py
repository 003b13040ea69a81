"""Libraries for agents against a server REPLAY (agent_libraries.jsonl): each asks as it does, and finds what it looks for.

    python agent_libraries.py [NAME...]

A line for each: `ok  NAME` or `FAILED  NAME`; without a name also `skipped: why` for those that are not installed.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

URL = os.environ["REPLAY"]
BASE, MODEL, KEY = URL + "/v1", "gpt-oss-20b", "sk-test"
HELLO, SUNNY = "Hello! What can I do?", "It is sunny in Oslo."
WEATHER = "What is the weather in Oslo?"
os.environ.update(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=BASE, OPENAI_AGENTS_DISABLE_TRACING="1", HAYSTACK_TELEMETRY_ENABLED="False")
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True")


def person():
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    return Person


def anthropic_sdk():
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    hi = [{"role": "user", "content": "hi"}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    got = client.messages.create(model=MODEL, max_tokens=4000, messages=hi, thinking=thinking)
    assert [block.type for block in got.content] == ["thinking", "text"] and got.content[1].text == HELLO, got
    assert got.stop_reason == "end_turn" and got.usage.output_tokens > 0, got
    with client.messages.stream(model=MODEL, max_tokens=4000, messages=hi) as stream:
        assert "".join(stream.text_stream) == HELLO
        assert stream.get_final_message().stop_reason == "end_turn"
    schema = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
    tools = [{"name": "get_weather", "description": "Tells it.", "input_schema": schema}]
    turns = [{"role": "user", "content": WEATHER}]
    called = client.messages.create(model=MODEL, max_tokens=4000, messages=turns, tools=tools, thinking=thinking)
    use = called.content[-1]
    assert called.stop_reason == "tool_use" and use.input == {"location": "Oslo"}, called
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    turns += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    got = client.messages.create(model=MODEL, max_tokens=4000, messages=turns, tools=tools)
    assert got.content[0].text == SUNNY, got
    assert client.messages.count_tokens(model=MODEL, messages=turns, tools=tools).input_tokens > 100
    try:
        client.messages.create(model="other", max_tokens=1, messages=hi)
        raise AssertionError("another model was served")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body


def llm():
    with tempfile.TemporaryDirectory() as folder:
        models = f"- model_id: local\n  model_name: {MODEL}\n  api_base: {BASE}\n  api_key_name: local\n"
        Path(folder, "keys.json").write_text(json.dumps({"local": KEY}))
        Path(folder, "extra-openai-models.yaml").write_text(models)
        program = Path(sys.executable).with_name("llm")
        for flags in [[], ["--no-stream"]]:
            environment = os.environ | {"LLM_USER_PATH": folder}
            ran = subprocess.run([program, "-m", "local", *flags, "hi"], env=environment, capture_output=True, text=True)
            assert ran.returncode == 0 and ran.stdout.strip() == HELLO, ran


def openai_agents():
    import agents

    @agents.function_tool
    def get_weather(location: str) -> str:
        """The weather at a place."""
        return f"sunny in {location}"

    client = agents.AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    for kind in [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel]:
        agent = agents.Agent(name="a", instructions="Help.", tools=[get_weather], model=kind(model=MODEL, openai_client=client))
        assert agents.Runner.run_sync(agent, WEATHER).final_output == SUNNY, kind


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def get_weather(location: str) -> str:
        return f"sunny in {location}"

    for kind in [OpenAIChatModel, OpenAIResponsesModel]:
        model = kind(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
        assert Agent(model, tools=[get_weather]).run_sync(WEATHER).output == SUNNY, kind
        got = Agent(model, output_type=person()).run_sync("Result with a person").output
        assert (got.name, got.age) == ("Ada", 36), got
        got = Agent(model, output_type=NativeOutput(person())).run_sync("Name a person").output
        assert (got.name, got.age) == ("Ada", 36), got


def instructor():
    from typing import Iterable

    import anthropic
    import instructor as library
    from openai import OpenAI

    chats = library.from_openai, OpenAI(base_url=BASE, api_key=KEY, max_retries=0), {}
    messages = library.from_anthropic, anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0), {"max_tokens": 2000}
    modes = {
        "FUNCTIONS TOOLS TOOLS_STRICT PARALLEL_TOOLS RESPONSES_TOOLS RESPONSES_TOOLS_WITH_INBUILT_TOOLS": chats,
        "JSON JSON_O1 JSON_SCHEMA MD_JSON": chats,
        "ANTHROPIC_TOOLS ANTHROPIC_PARALLEL_TOOLS ANTHROPIC_REASONING_TOOLS ANTHROPIC_JSON": messages,
    }
    for names, (patch, client, more) in modes.items():
        for name in names.split():
            patched = patch(client, mode=getattr(library.Mode, name))
            asked = [{"role": "user", "content": "Name a person" if "JSON" in name else "Call with a person"}]
            wanted = Iterable[person()] if "PARALLEL" in name else person()
            got = patched.chat.completions.create(
                model=MODEL, response_model=wanted, messages=asked, max_retries=0, **more
            )
            people = list(got) if "PARALLEL" in name else [got]
            assert people, name
            for one in people:
                assert (one.name, one.age) == ("Ada", 36), (name, one)


def smolagents():
    from smolagents import OpenAIServerModel

    model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key=KEY)
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert model([message]).content == HELLO
    assert "".join(delta.content or "" for delta in model.generate_stream([message])) == HELLO
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": person().model_json_schema(), "strict": True}}
    named = {"role": "user", "content": [{"type": "text", "text": "Name a person"}]}
    assert '"Ada"' in model([named], response_format=schema, stop_sequences=["END"]).content


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model=MODEL, api_base=BASE, api_key=KEY, is_chat_model=True, is_function_calling_model=True, max_retries=0)
    assert model.chat([ChatMessage(role="user", content="hi")]).message.content == HELLO
    assert "".join(part.delta or "" for part in model.stream_chat([ChatMessage(role="user", content="hi")])) == HELLO
    assert model.complete("hi").text == HELLO


def haystack():
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    def get_weather(location: str) -> str:
        """The weather at a place."""
        return f"sunny in {location}"

    generator = OpenAIChatGenerator(api_key=Secret.from_token(KEY), model=MODEL, api_base_url=BASE, max_retries=0)
    assert generator.run([ChatMessage.from_user("hi")])["replies"][0].text == HELLO
    tools = [create_tool_from_function(get_weather)]
    call = generator.run([ChatMessage.from_user(WEATHER)], tools=tools)["replies"][0].tool_call
    assert (call.tool_name, call.arguments) == ("get_weather", {"location": "Oslo"}), call


def dspy():
    import dspy as library

    library.configure(lm=library.LM(f"openai/{MODEL}", api_base=BASE, api_key=KEY, cache=False, num_retries=0))
    assert library.Predict("question -> answer")(question="Where is it sunny?").answer == "Oslo"


ALL = [anthropic_sdk, llm, openai_agents, pydantic_ai, instructor, smolagents, llama_index, haystack, dspy]


def main():
    by_name = {library.__name__: library for library in ALL}
    if unknown := [name for name in sys.argv[1:] if name not in by_name]:
        sys.exit(f"no library is called {', '.join(unknown)}, of: {' '.join(by_name)}")
    failed = 0
    for library in [by_name[name] for name in sys.argv[1:]] or ALL:
        try:
            library()
            print(f"ok  {library.__name__}")
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and not sys.argv[1:]:
                print(f"skipped: {library.__name__}: {error}")
                continue
            failed += 1
            print(f"FAILED  {library.__name__}")
            traceback.print_exc(limit=4)
    sys.exit(failed > 0)


main()
