// This server's API: what is sent, what comes back, and errors as sentences that say what to do.

import { keptInTab } from "./store.mjs";

const ADVICE = {
  context_length_exceeded: "Begin a new chat, leave files out, or edit an earlier message: what follows it is then left out.",
  model_not_found: "Choose another model above.",
  host_not_allowed: "Whoever runs the server can allow this name with --allowed-hosts.",
  rate_limit_exceeded: "Wait a moment, then try again.",
  overloaded: "Others are being answered. Wait a moment, then try again.",
  loading: "The model is still being loaded. Try again in a moment.",
  load_failed: "The server's log says more. Try again when the device is free.",
  out_of_memory: "Another program may be using the device. Try again, or begin a new chat with less text.",
  shutting_down: "The server is being stopped. Try again when it is back.",
  timeout: "Ask for fewer tokens in the settings, or try again.",
  engine_failed: "The server's log says why. Try again; if it happens again, restart the server.",
  engine_stalled: "The server's log says why. It may have to be restarted.",
  invalid_json_schema: "Change the JSON schema in the settings.",
};
const FIELDS = {
  response_format: "Change the JSON schema in the settings.",
  tools: "Change the tools in the settings.",
  reasoning_effort: "Choose another effort in the settings.",
  continue_final_message: "This answer cannot be continued. Try again makes a new one.",
};
const STATUSES = {
  413: "Send less text at once, or leave files out.",
  429: "Wait a moment, then try again.",
};

export class ServerError extends Error {
  constructor(message, advice, status = 0) {
    super(message);
    this.advice = advice;
    this.status = status;
  }
}

// As a sentence, with what the server's own errors leave out.
function sentence(text) {
  const trimmed = String(text).trim();
  if (!trimmed) return "The server failed.";
  return trimmed[0].toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}

function serverError(error, status, headers) {
  const param = (error.param ?? "").split(/[.[]/)[0];
  let advice = ADVICE[error.code] ?? FIELDS[param] ?? STATUSES[status];
  const seconds = Number(headers?.get("retry-after"));
  if (seconds > 1) advice = `Try again in ${seconds} seconds.`;
  if (!advice && status >= 500) {
    const id = headers?.get("x-request-id");
    advice = `The server's log says more${id ? `, under ${id}` : ""}. Then try again.`;
  }
  if (!advice) advice = param ? "Look at the settings, then try again." : "Try again.";
  return new ServerError(sentence(error.message), advice, status);
}

async function ask(path, options = {}) {
  const key = keptInTab("key");
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.", "See whether it still runs, then try again.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let error = { message: text || answer.statusText || `status ${answer.status}` };
  try {
    error = { ...error, ...JSON.parse(text).error };
  } catch {
    // A proxy's page, or nothing: shown as it is.
    error.message = `${error.message.slice(0, 300)} (${answer.status})`;
  }
  throw serverError(error, answer.status, answer.headers);
}

// The models that are served, each with the tokens of its context.
export async function models() {
  const { data } = await (await ask("v1/models")).json();
  return data.map(({ id, max_model_len }) => ({ id, context: max_model_len }));
}

// The data of a stream of server-sent events, one after the other.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const lines = text.split(/\r?\n/);
    text = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

const lost = () =>
  new ServerError("The connection ended before the answer did.", "See whether the server still runs. Then continue, or try again.");

// The pieces of an answer: {reasoning, content, calls, finish, usage}, each where there is some.
export async function* chat(body, signal) {
  const got = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const stream = events(got.body);
  for (;;) {
    let next;
    try {
      next = await stream.next();
    } catch (error) {
      throw error.name === "AbortError" ? error : lost();
    }
    if (next.done) throw lost();
    if (next.value === "[DONE]") return;
    const chunk = JSON.parse(next.value);
    if (chunk.error) throw serverError(chunk.error, 500, got.headers);
    const [choice] = chunk.choices ?? [];
    const { reasoning, reasoning_content, content, tool_calls } = choice?.delta ?? {};
    yield {
      reasoning: reasoning ?? reasoning_content ?? "",
      content: content ?? "",
      calls: tool_calls ?? [],
      finish: choice?.finish_reason ?? null,
      usage: chunk.usage ?? null,
    };
  }
}

// A message's text with its files in front, each between fences that are longer than those in it.
export function withFiles({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`{3,}/g), ([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
  });
  return parts.join("") + content;
}

// A conversation as messages. Answers without a word are left out; reasoning is sent where the model needs it to go on.
export function messages(turns, system) {
  const list = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") list.push({ role: "user", content: withFiles(turn) });
    else if (turn.role === "tool") list.push({ role: "tool", tool_call_id: turn.call, content: turn.content });
    else if (turn.calls.length) {
      const calls = turn.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
      const reasoning = turn.reasoning ? { reasoning: turn.reasoning } : {};
      list.push({ role: "assistant", content: turn.content, ...reasoning, tool_calls: calls });
    } else if (turn.content || turn.reasoning) {
      const reasoning = turn.reasoning && !turn.content ? { reasoning: turn.reasoning } : {};
      list.push({ role: "assistant", content: turn.content, ...reasoning });
    }
  }
  return list;
}
