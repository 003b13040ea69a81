// The openai package for JavaScript against a server: REPLAY (replay.jsonl, key sk-test) and TINY (the built-in model).
// Packages are taken from the working folder's node_modules.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const openai = await load("openai");
const { zodResponseFormat, zodTextFormat } = await load("openai/helpers/zod");
const { z } = await load("zod");
const OpenAI = openai.default?.OpenAI ?? openai.OpenAI ?? openai.default;

const client = new OpenAI({ baseURL: process.env.REPLAY + "/v1", apiKey: "sk-test", maxRetries: 0 });
const tiny = new OpenAI({ baseURL: process.env.TINY + "/v1", apiKey: "any", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const tinyModel = (await tiny.models.list()).data[0].id;
const hello = "Hello! 🙂 What can I do?";
const user = (content) => [{ role: "user", content }];
const weather = {
  type: "object",
  properties: { location: { type: "string" } },
  required: ["location"],
  additionalProperties: false,
};
const chatTools = [{ type: "function", function: { name: "get_weather", parameters: weather } }];
const tools = [{ type: "function", name: "get_weather", parameters: weather, strict: true }];
const Person = z.object({ name: z.string(), age: z.number() });

async function idle() {
  for (let i = 0; ; i++) {
    const text = await (
      await fetch(process.env.REPLAY + "/metrics", { headers: { Authorization: "Bearer sk-test" } })
    ).text();
    const busy = [...text.matchAll(/^gptoss_num_requests_(?:running|waiting)\S* (\S+)$/gm)];
    assert(busy.length >= 2, "no such metrics");
    if (busy.every((m) => +m[1] === 0)) return;
    assert(i < 100, "a request that was left still runs");
    await new Promise((done) => setTimeout(done, 50));
  }
}

const tests = {
  async "models are listed and found by name"() {
    assert.equal((await client.models.retrieve(model)).id, model);
    await assert.rejects(client.models.retrieve("gpt-unknown"), { status: 404, code: "model_not_found" });
  },
  async "a chat is answered"() {
    const got = await client.chat.completions.create({ model, messages: user("hi") });
    assert.equal(got.choices[0].message.content, hello);
    assert.equal(got.choices[0].message.reasoning, "The user greets.");
    assert.equal(got.choices[0].finish_reason, "stop");
    assert.equal(got.usage.total_tokens, got.usage.prompt_tokens + got.usage.completion_tokens);
  },
  async "a chat is streamed"() {
    let text = "",
      reasons = [],
      usage = null;
    for await (const chunk of await client.chat.completions.create({
      model,
      messages: user("hi"),
      stream: true,
      stream_options: { include_usage: true },
    })) {
      text += chunk.choices[0]?.delta.content ?? "";
      if (chunk.choices[0]?.finish_reason) reasons.push(chunk.choices[0].finish_reason);
      usage ??= chunk.usage;
    }
    assert.equal(text, hello);
    assert.deepEqual(reasons, ["stop"]);
    assert(usage.completion_tokens > 0);
  },
  async "the chat stream helper gathers what create gives"() {
    const asked = { model, messages: user("How is the weather in Oslo, and say what you do"), tools: chatTools };
    const whole = (await client.chat.completions.create(asked)).choices[0].message;
    const stream = client.chat.completions.stream(asked);
    const final = (await stream.finalChatCompletion()).choices[0];
    assert.equal(final.message.content, whole.content);
    assert.equal(final.message.tool_calls[0].function.arguments, whole.tool_calls[0].function.arguments);
    assert.equal(final.message.tool_calls[0].function.name, "get_weather");
    assert.equal(final.finish_reason, "tool_calls");
  },
  async "runTools calls the function and gives its result back"() {
    const seen = [];
    for (const stream of [false, true]) {
      const runner = client.chat.completions.runTools({
        model,
        stream,
        messages: user("How is the weather in Oslo?"),
        tools: [
          {
            type: "function",
            function: {
              name: "get_weather",
              parameters: weather,
              parse: JSON.parse,
              function: (args) => {
                seen.push(args);
                return "sunny";
              },
            },
          },
        ],
      });
      assert.equal(await runner.finalContent(), "It is sunny in Oslo.");
    }
    assert.deepEqual(seen, [{ location: "Oslo" }, { location: "Oslo" }]);
  },
  async "a chat is parsed"() {
    const got = await client.chat.completions.parse({
      model,
      messages: user("Name a person"),
      response_format: zodResponseFormat(Person, "person"),
    });
    assert.deepEqual(got.choices[0].message.parsed, { name: "Ada", age: 36 });
  },
  async "a response is made"() {
    const got = await client.responses.create({ model, input: "hi" });
    assert.equal(got.output_text, hello);
    assert.equal(got.status, "completed");
    assert.deepEqual(
      got.output.map((item) => item.type),
      ["reasoning", "message"],
    );
  },
  async "a response is streamed"() {
    for (const input of ["hi", "How is the weather in Oslo, and say what you do"]) {
      const stream = client.responses.stream({ model, input, tools });
      const numbers = [];
      for await (const event of stream) numbers.push(event.sequence_number);
      const final = await stream.finalResponse();
      assert.deepEqual(
        numbers,
        numbers.map((_, i) => i),
      );
      const whole = await client.responses.create({ model, input, tools });
      const bare = (r) =>
        r.output.map(({ type, name, arguments: a, content }) => ({
          type,
          name,
          a,
          texts: content?.map((part) => part.text),
        }));
      assert.deepEqual(bare(final), bare(whole));
    }
  },
  async "a response calls a tool and goes on"() {
    const first = await client.responses.create({ model, input: "How is the weather in Oslo?", tools });
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { location: "Oslo" });
    const input = [{ type: "function_call_output", call_id: call.call_id, output: "sunny" }];
    assert.equal(
      (await client.responses.create({ model, input, previous_response_id: first.id, tools })).output_text,
      "It is sunny in Oslo.",
    );
    assert.equal(
      (
        await client.responses.create({
          model,
          input: [...user("How is the weather in Oslo?"), ...first.output, ...input],
          tools,
        })
      ).output_text,
      "It is sunny in Oslo.",
    );
  },
  async "a response is parsed"() {
    const got = await client.responses.parse({
      model,
      input: "Name a person",
      text: { format: zodTextFormat(Person, "person") },
    });
    assert.deepEqual(got.output_parsed, { name: "Ada", age: 36 });
  },
  async "a text is completed"() {
    const asked = { model: tinyModel, prompt: "Once upon a time", max_tokens: 12, temperature: 0 };
    const whole = (await tiny.completions.create(asked)).choices[0].text;
    assert(whole.startsWith(", there was a little girl"), whole);
    let text = "";
    for await (const chunk of await tiny.completions.create({ ...asked, stream: true })) text += chunk.choices[0].text;
    assert.equal(text, whole);
  },
  async "wrong requests are told what is wrong"() {
    await assert.rejects(client.chat.completions.create({ model: "gpt-unknown", messages: user("hi") }), {
      status: 404,
      code: "model_not_found",
    });
    await assert.rejects(client.chat.completions.create({ model, messages: user("hi"), temperature: 3 }), {
      status: 400,
      param: "temperature",
      type: "invalid_request_error",
    });
    await assert.rejects(client.responses.create({ model, input: "hi", previous_response_id: "resp_0" }), {
      status: 400,
      code: "previous_response_not_found",
    });
    await assert.rejects(new OpenAI({ baseURL: client.baseURL, apiKey: "sk-wrong", maxRetries: 0 }).models.list(), {
      status: 401,
      code: "invalid_api_key",
    });
  },
  async "an engine that fails is told in the stream"() {
    const stream = await client.chat.completions.create({ model, messages: user("Fail, please"), stream: true });
    await assert.rejects(
      async () => {
        for await (const _ of stream);
      },
      (error) => error instanceof OpenAI.APIError,
    );
  },
  async "a client that does not wait frees its place"() {
    await assert.rejects(
      client.chat.completions.create({ model, messages: user("Answer slowly") }, { timeout: 500 }),
      (error) => error instanceof OpenAI.APIConnectionTimeoutError,
    );
    await idle();
    const stream = await client.chat.completions.create({ model, messages: user("Answer slowly"), stream: true });
    for await (const _ of stream) break;
    await idle();
  },
};

for (const [name, run] of Object.entries(tests)) {
  if (process.argv.length > 2 && !process.argv.slice(2).some((word) => name.includes(word))) continue;
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    console.log(`FAILED  ${name}: ${String(process.env.TRACE ? error.stack : error.message).slice(0, 600)}`);
  }
}
