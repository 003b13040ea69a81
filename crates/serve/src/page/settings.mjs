// The settings: what is asked of the model besides a conversation. A field that is empty asks for nothing, and the
// server decides.

import { kept } from "./store.mjs";

const EMPTY = { system: "", effort: "", temperature: "", top_p: "", max_tokens: "", schema: "", tools: "" };

const $ = id => document.getElementById(id);

function number(text, least, most, isWhole) {
  if (text.trim() === "") return "";
  const value = Number(text.trim().replace(",", "."));
  if (!Number.isFinite(value) || value < least || value > most || (isWhole && !Number.isInteger(value))) {
    const range = most === Infinity ? `${least} or more` : `from ${least} to ${most}`;
    throw new Error(`A ${isWhole ? "whole number" : "number"} ${range} is expected.`);
  }
  return value;
}

function json(text, isRight, expected) {
  if (!text.trim()) return "";
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}.`);
  }
  if (!isRight(value)) throw new Error(expected);
  return value;
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
const isTool = value => isObject(value) && typeof (value.function ?? value).name === "string";

// A field's text as what it means; errors are sentences.
const READ = {
  system: text => text,
  effort: text => text,
  temperature: text => number(text, 0, 2, false),
  top_p: text => number(text, 0, 1, false),
  max_tokens: text => number(text, 1, Infinity, true),
  schema: text => json(text, isObject, "A JSON schema is an object, such as {\"type\": \"object\"}."),
  tools: text =>
    json(text, value => Array.isArray(value) && value.every(isTool), "A list of functions is expected, each with a `name`."),
};

function keptValues() {
  try {
    return JSON.parse(kept("settings")) ?? {};
  } catch {
    return {};   // not ours; replaced with the next change
  }
}

export class Settings {
  constructor() {
    this.values = { ...EMPTY };
    for (const [name, text] of Object.entries(keptValues())) {
      try {
        if (typeof text !== "string" || !(name in READ)) continue;
        READ[name](text);
        this.values[name] = text;
      } catch {
        // What another version took for right and is not stays out.
      }
    }
    for (const name of Object.keys(EMPTY)) {
      const field = $(name);
      field.value = this.values[name];
      field.addEventListener("input", () => this.change(name));
    }
    $("defaults").addEventListener("click", () => this.reset());
    $("options").addEventListener("click", () => $("settings").showModal());
    this.mark();
  }

  // What is wrong is told, and not used: the last right value stays.
  change(name) {
    const field = $(name), told = $(`${name}-wrong`);
    let wrong = "";
    try {
      READ[name](field.value);
      this.values[name] = field.value;
      kept("settings", JSON.stringify(this.values));
    } catch (error) {
      wrong = error.message;
    }
    if (told) {
      told.textContent = wrong && `${wrong} ${this.values[name] ? "The last right value is used." : "It is not used."}`;
      field.setAttribute("aria-invalid", String(!!wrong));
    }
    this.mark();
  }

  reset() {
    for (const name of Object.keys(EMPTY)) {
      $(name).value = "";
      this.change(name);
    }
  }

  // The button says when the settings ask for something.
  mark() {
    const n = Object.values(this.values).filter(value => value.trim()).length;
    $("options").classList.toggle("set", n > 0);
    $("options").setAttribute("aria-label", n ? `Settings, ${n} changed` : "Settings");
    $("options").title = $("options").getAttribute("aria-label");
  }

  get system() {
    return this.values.system;
  }

  get hasForm() {
    return !!this.values.schema.trim();
  }

  // The fields of a request. What nobody chose is not asked of a model that may not take it.
  fields() {
    const read = name => READ[name](this.values[name]);
    const body = {};
    for (const name of ["temperature", "top_p", "max_tokens"]) if (read(name) !== "") body[name] = read(name);
    if (this.values.effort) body.reasoning_effort = this.values.effort;
    const schema = read("schema"), tools = read("tools");
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    if (tools && tools.length) body.tools = tools.map(tool => (tool.function ? tool : { type: "function", function: tool }));
    return body;
  }
}
