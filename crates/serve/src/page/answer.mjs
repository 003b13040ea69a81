// Answers on their way: one of each conversation at most, whether it is shown or not.

import * as server from "./server.mjs";

const SAVED_EVERY_MS = 1000;

// A call in pieces: the first has its id and name, all have a part of its arguments.
function addCall(calls, { index = calls.length, id, function: called = {} }) {
  calls[index] ??= { id: id ?? `call-${index}`, name: "", arguments: "" };
  calls[index].name += called.name ?? "";
  calls[index].arguments += called.arguments ?? "";
}

export class Answers {
  // `hooks`: grew(conversation, turn), ended(conversation, turn, saved), locked(conversation), save(conversation), which
  // gives a promise of when that is done: `saved`.
  constructor(settings, hooks) {
    this.settings = settings;
    this.hooks = hooks;
    this.running = new Map();   // by the conversation's id: {conversation, turn, controller}
    this.isLeaving = false;
  }

  isRunning(conversation) {
    return this.running.has(conversation.id);
  }

  stop(conversation) {
    this.running.get(conversation.id)?.controller.abort();
  }

  // A running conversation gets another id.
  rename(conversation, id) {
    const run = this.running.get(conversation.id);
    this.running.delete(conversation.id);
    conversation.id = id;
    this.running.set(id, run);
  }

  // Answers the last turn; or goes on with it, where it is an answer itself.
  async begin(conversation, model, context) {
    const last = conversation.turns.at(-1);
    const goesOn = last.role === "assistant";
    const turn = goesOn ? last : { role: "assistant", content: "", reasoning: "", calls: [] };
    for (const name of ["error", "advice", "stopped", "interrupted", "finish"]) delete turn[name];
    const body = {
      messages: server.messages(conversation.turns, this.settings.system),
      stream: true,
      stream_options: { include_usage: true },
      ...this.settings.fields(),
    };
    if (goesOn) {
      body.continue_final_message = true;
      delete body.tools;
      delete body.response_format;
    } else {
      conversation.turns.push(turn);
      if (this.settings.hasForm) turn.form = "json";
    }
    if (model) body.model = turn.model = model;
    if (context) turn.context = context;
    turn.running = true;
    conversation.changed = Date.now();
    const run = { conversation, turn, controller: new AbortController() };
    this.running.set(conversation.id, run);
    this.hooks.save(conversation);
    this.hooks.grew(conversation, turn);
    try {
      await this.read(run, body);
    } catch (error) {
      if (this.isLeaving) return;
      if (error.name === "AbortError") turn.stopped = true;
      else if (error.status === 401) run.isLocked = true;
      else {
        turn.error = error.message;
        turn.advice = error.advice ?? "This is a mistake of the page.";
      }
    }
    delete turn.running;
    this.running.delete(conversation.id);
    // Nothing came, and nothing is to be told.
    const isEmpty = !turn.content && !turn.reasoning && !turn.calls.length;
    if (run.isLocked && isEmpty) conversation.turns.splice(conversation.turns.indexOf(turn), 1);
    const saved = this.hooks.save(conversation);
    this.hooks.ended(conversation, turn, saved);
    if (run.isLocked) this.hooks.locked(conversation);
  }

  async read(run, body) {
    const { conversation, turn, controller } = run;
    const sent = performance.now(), before = { tokens: turn.tokens ?? 0, decodeMs: turn.decodeMs ?? 0 };
    let first = 0, thoughtFrom = 0, saved = sent;
    for await (const piece of server.chat(body, controller.signal)) {
      const now = performance.now();
      if (!first && (piece.reasoning || piece.content || piece.calls.length)) {
        first = now;
        turn.firstMs = now - sent;
      }
      if (piece.reasoning) thoughtFrom ||= now;
      if (thoughtFrom && !turn.content && !turn.calls.length) turn.reasoningMs = now - thoughtFrom;
      turn.reasoning += piece.reasoning;
      turn.content += piece.content;
      for (const call of piece.calls) addCall(turn.calls, call);
      if (piece.finish) turn.finish = piece.finish;
      if (piece.reasoning || piece.content || piece.calls.length) turn.decodeMs = before.decodeMs + now - first;
      if (piece.usage) {
        turn.tokens = before.tokens + piece.usage.completion_tokens;
        turn.prompt = piece.usage.prompt_tokens - before.tokens;
      }
      if (now - saved > SAVED_EVERY_MS) {
        saved = now;
        this.hooks.save(conversation);
      }
      this.hooks.grew(conversation, turn);
    }
  }

  // The page is about to go: what was shown is kept.
  leave(store) {
    this.isLeaving = true;
    for (const { conversation, turn } of this.running.values()) {
      delete turn.running;
      turn.interrupted = true;
      store.rescue(conversation);
    }
  }
}
