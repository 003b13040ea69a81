// Vercel's AI SDK against a server REPLAY (agent_libraries.jsonl, key sk-test), by each of its providers that can name it.
// Packages are taken from the working folder's node_modules.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateObject, generateText, stepCountIs, streamObject, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { z } = await load("zod");

globalThis.AI_SDK_LOG_WARNINGS = false;
const at = { baseURL: process.env.REPLAY + "/v1", apiKey: "sk-test" };
const name = "gpt-oss-20b";
const models = {
  "openai-compatible": createOpenAICompatible({ ...at, name: "local", includeUsage: true, supportsStructuredOutputs: true })(name),
  "openai, chats": createOpenAI(at).chat(name),
  "openai, responses": createOpenAI(at).responses(name),
  anthropic: createAnthropic(at)(name),
};
const hello = "Hello! What can I do?";
const weather = tool({
  description: "Tells it.",
  inputSchema: z.object({ location: z.string() }),
  execute: async ({ location }) => `sunny in ${location}`,
});
const ask = { prompt: "What is the weather in Oslo?", tools: { get_weather: weather }, stopWhen: stepCountIs(3), maxRetries: 0 };
const schema = z.object({ name: z.string(), age: z.number() });
const ada = { name: "Ada", age: 36 };

const tests = {
  async "answers"(model) {
    const got = await generateText({ model, prompt: "hi", maxRetries: 0 });
    assert.equal(got.text, hello);
    assert.equal(got.finishReason, "stop");
    assert(got.usage.inputTokens > 10 && got.usage.outputTokens > 5, JSON.stringify(got.usage));
  },
  async "streams"(model) {
    const got = streamText({ model, prompt: "hi", maxRetries: 0 });
    let text = "";
    for await (const part of got.textStream) text += part;
    assert.equal(text, hello);
    assert((await got.usage).outputTokens > 5);
  },
  async "calls a tool"(model) {
    const got = await generateText({ model, ...ask });
    assert.equal(got.text, "It is sunny in Oslo.");
    assert.deepEqual(got.steps[0].toolCalls[0].input, { location: "Oslo" });
  },
  async "calls a tool in a stream"(model) {
    const got = streamText({ model, ...ask });
    assert.equal(await got.text, "It is sunny in Oslo.");
    assert.equal((await got.steps).length, 2);
  },
  async "makes an object"(model) {
    assert.deepEqual((await generateObject({ model, schema, prompt: "Name a person", maxRetries: 0 })).object, ada);
  },
  async "makes an object in a stream"(model) {
    const got = streamObject({ model, schema, prompt: "Name a person", maxRetries: 0 });
    let last;
    for await (const object of got.partialObjectStream) last = object;
    assert.deepEqual(last, ada);
  },
};

let failed = 0;
for (const [provider, model] of Object.entries(models)) {
  for (const [what, test] of Object.entries(tests)) {
    try {
      await test(model);
      console.log(`ok      ${provider} ${what}`);
    } catch (error) {
      failed++;
      console.log(`FAILED  ${provider} ${what}: ${error.stack ?? error}`);
      if (error.responseBody) console.log(error.responseBody);
    }
  }
}
process.exit(failed > 0 ? 1 : 0);
