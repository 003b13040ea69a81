// Turns of a conversation as articles of the document.

import { Shown, codeBlock } from "./markdown.mjs";
import { build } from "./tree.mjs";

const count = new Intl.NumberFormat("en");

function make(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function button(text, label, press) {
  const node = make("button", "", text);
  node.type = "button";
  node.setAttribute("aria-label", label);
  node.addEventListener("click", press);
  return node;
}

function seconds(ms) {
  if (ms < 50) return "under 0.1 s";
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const whole = Math.round(ms / 1000);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

// `55 tokens · 45.2 tok/s · first token 0.31 s · context 64 of 131,072 (0 %)`
export function statistics(turn) {
  const parts = [];
  if (turn.tokens) parts.push(`${count.format(turn.tokens)} token${turn.tokens === 1 ? "" : "s"}`);
  if (turn.tokens > 1 && turn.decodeMs > 50) parts.push(`${((turn.tokens - 1) / (turn.decodeMs / 1000)).toFixed(1)} tok/s`);
  if (turn.firstMs !== undefined) parts.push(`first token ${(turn.firstMs / 1000).toFixed(2)} s`);
  if (turn.prompt) {
    const used = turn.prompt + (turn.tokens ?? 0);
    const share = Math.round((100 * used) / turn.context);
    const of = turn.context ? ` of ${count.format(turn.context)} (${share || "under 1"} %)` : "";
    parts.push(`context ${count.format(used)}${of}`);
  }
  return parts.join(" · ");
}

// What a person should know of how an answer ended.
export function ending(turn) {
  if (turn.error) return "";
  if (turn.interrupted) return "The page was left while this was written.";
  if (turn.stopped) return "Stopped.";
  if (turn.finish === "length" && !turn.content) return "The limit of tokens was reached while the model was still reasoning.";
  if (turn.finish === "length") return "Cut: the limit of tokens was reached.";
  return "";
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export class UserView {
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.node = make("article", "user");
    this.node.setAttribute("aria-label", "You");
    this.draw();
  }

  draw() {
    const { turn, node } = this;
    node.replaceChildren(make("h2", "unseen", "You"));
    if (turn.files?.length) {
      const list = node.appendChild(make("ul", "named"));
      list.setAttribute("aria-label", "Files");
      for (const { name, text } of turn.files) {
        list.appendChild(make("li")).append(make("span", "", name), make("span", "faint", `${count.format(text.length)} characters`));
      }
    }
    if (turn.content) node.append(make("div", "text", turn.content));
    const under = node.appendChild(make("div", "under"));
    under.append(
      button("Edit", "Edit this message", () => this.edit()),
      button("Copy", "Copy this message", event => this.actions.copy(turn.content, event.currentTarget)),
    );
  }

  edit() {
    const { turn, node } = this;
    const form = make("form", "edit"), box = make("textarea");
    box.value = turn.content;
    box.setAttribute("aria-label", "Edit your message");
    const cancel = button("Cancel", "Cancel the edit", () => this.draw());
    const send = make("button", "main", "Send");
    form.append(box, make("div", "bar"));
    form.lastChild.append(cancel, send);
    const submit = () => {
      if (box.value.trim() || turn.files?.length) this.actions.edited(turn, box.value);
    };
    form.addEventListener("submit", event => {
      event.preventDefault();
      submit();
    });
    box.addEventListener("keydown", event => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.draw();
        node.querySelector("button").focus();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
    });
    node.replaceChildren(make("h2", "unseen", "You"), form);
    box.style.height = `${Math.min(box.scrollHeight + 4, 400)}px`;
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }
}

export class AssistantView {
  constructor(turn, actions) {
    this.turn = turn;
    this.actions = actions;
    this.results = new Map();   // by the id of a call
    this.isLast = false;
    this.node = make("article", "assistant");
    this.node.setAttribute("aria-label", "Answer");
    this.details = make("details", "thoughts");
    this.summary = this.details.appendChild(make("summary"));
    this.thoughts = this.details.appendChild(make("div")).appendChild(document.createTextNode(""));
    this.text = make("div", "shown");
    this.shown = new Shown(this.text);
    this.calls = make("div", "calls");
    this.failed = make("div", "failed");
    this.failed.setAttribute("role", "alert");
    this.under = make("div", "under");
    this.node.append(make("h2", "unseen", "Answer"), this.details, this.text, this.calls, this.failed, this.under);
    this.called = "";
    this.drawn = "";
    this.draw();
  }

  draw() {
    const { turn } = this;
    this.details.hidden = !turn.reasoning;
    if (turn.reasoning !== this.thoughts.data) {
      if (turn.reasoning.startsWith(this.thoughts.data)) this.thoughts.appendData(turn.reasoning.slice(this.thoughts.length));
      else this.thoughts.data = turn.reasoning;
    }
    const thinks = turn.running && !turn.content && !turn.calls.length;
    const told = turn.reasoningMs === undefined ? "" : ` for ${seconds(turn.reasoningMs)}`;
    const summary = thinks ? `Thinking${told}` : told ? `Thought${told}` : "Reasoning";
    if (this.summary.textContent !== summary) this.summary.textContent = summary;
    this.summary.classList.toggle("waits", !!thinks);
    this.text.classList.toggle("waits", !!(thinks && !turn.reasoning));
    this.text.hidden = !turn.content && !(thinks && !turn.reasoning);
    this.shown.update(turn.form === "json" && turn.content ? "```json\n" + turn.content + "\n```" : turn.content);
    this.drawCalls();
    this.drawEnd();
  }

  drawCalls() {
    const { turn } = this;
    const open = this.isLast && !turn.running && turn.calls.length > 0;
    const state = JSON.stringify([turn.calls, [...this.results], open]);
    if (state === this.called) return;
    this.called = state;
    this.calls.hidden = !turn.calls.length;
    this.calls.replaceChildren();
    const boxes = [];
    turn.calls.forEach((call, i) => {
      const card = this.calls.appendChild(make("section", "call"));
      card.setAttribute("aria-label", `Call of ${call.name}`);
      card.append(make("h3", "", call.name), make("h4", "", "Arguments"));
      card.append(build(codeBlock("json", pretty(call.arguments))).lastChild);
      if (this.results.has(call.id)) {
        card.append(make("h4", "", "Result"), build(codeBlock("json", pretty(this.results.get(call.id)))).lastChild);
      } else if (open) {
        const part = card.appendChild(make("div", "result"));
        const label = part.appendChild(make("label", "", "Result, which you write in the place of the tool"));
        const box = part.appendChild(make("textarea", "mono"));
        box.rows = 2;
        box.id = `result-${i}`;
        label.htmlFor = box.id;
        boxes.push([call.id, box]);
      }
    });
    if (!boxes.length) return;
    const send = button("Send results", "Send results to the model", () =>
      this.actions.results(boxes.map(([call, box]) => ({ role: "tool", call, content: box.value }))),
    );
    send.classList.add("main");
    this.calls.append(send);
  }

  drawEnd() {
    const { turn, actions } = this;
    const state = JSON.stringify([turn.running, turn.error, turn.advice, ending(turn), statistics(turn), this.isLast, !!turn.content]);
    if (state === this.drawn) return;
    this.drawn = state;
    this.failed.hidden = !turn.error;
    this.failed.replaceChildren();
    if (turn.error) this.failed.append(make("p", "", turn.error), make("p", "faint", turn.advice ?? ""));
    this.under.replaceChildren();
    if (turn.running) return;
    const end = ending(turn), told = statistics(turn);
    if (end) this.under.append(make("span", "stats", end));
    if (told) this.under.append(make("span", "stats", told));
    if (turn.content) this.under.append(button("Copy", "Copy this answer", event => actions.copy(turn.content, event.currentTarget)));
    this.under.append(button("Try again", "Try again: replace this answer and what follows", () => actions.again(turn)));
    const isCut = turn.stopped || turn.interrupted || turn.error || turn.finish === "length";
    if (this.isLast && isCut && turn.content && turn.form !== "json") {
      this.under.append(button("Continue", "Continue this answer", () => actions.goOn(turn)));
    }
  }
}

