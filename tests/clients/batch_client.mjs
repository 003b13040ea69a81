// The openai package for JavaScript runs a batch: node batch_client.mjs URL REQUESTS OUTPUT ERRORS, of files of lines.
// As batch_client.py. Packages are taken from the working folder's node_modules.
import assert from "node:assert/strict";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.cwd(), "package.json"));
const openai = await import(pathToFileURL(require.resolve("openai")).href);
const OpenAI = openai.default?.OpenAI ?? openai.OpenAI ?? openai.default;
const [url, requests, output, errors] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "sk-test", maxRetries: 10 });

const file = await client.files.create({ file: fs.createReadStream(requests), purpose: "batch" });
assert.equal((await client.files.retrieve(file.id)).bytes, fs.statSync(requests).size);
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
  metadata: { by: "javascript" },
});
console.log(batch.id);
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((done) => setTimeout(done, 200));
  try {
    batch = await client.batches.retrieve(batch.id);
  } catch (error) {
    if (!/connection/i.test(error.message)) throw error;
  }
}
const listed = [];
for await (const one of client.batches.list({ limit: 1 })) listed.push(one.id);
assert(listed.includes(batch.id));
for (const [id, name] of [
  [batch.output_file_id, output],
  [batch.error_file_id, errors],
]) {
  fs.writeFileSync(name, id ? await (await client.files.content(id)).text() : "");
}
assert.equal((await client.files.delete(file.id)).deleted, true);
console.log(JSON.stringify(batch));
