// What the browser keeps: conversations in IndexedDB, settings in its local storage, and both as values checked on the
// way in. A browser may refuse to keep anything; then all of it lasts as long as the page.
//
// A conversation is {id, title, created, changed, turns}. A turn is one of
//   {role: "user", content, files: [{name, text}]}
//   {role: "assistant", content, reasoning, calls: [{id, name, arguments}], and what became of it: `OUTCOMES`}
//   {role: "tool", call, content}: the result of a call

const DATABASE = "gptoss-jit";
const CONVERSATIONS = "conversations";
const RESCUE = "gptoss-jit.rescue.";
const FORMAT = "gptoss-jit conversations";

// What an answer has besides, and the type of it.
const OUTCOMES = {
  model: "string", finish: "string", error: "string", advice: "string", form: "string", running: "boolean", stopped: "boolean",
  interrupted: "boolean", reasoningMs: "number", firstMs: "number", decodeMs: "number", tokens: "number", prompt: "number",
  context: "number",
};

export class ImportError extends Error {}

export function newId() {
  // `randomUUID` is not there on plain HTTP.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), byte => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, turns: [] };
}

// ---- small things ----

function local(store, name, value) {
  try {
    if (value === undefined) return store().getItem("gptoss-jit." + name);
    if (value === null) store().removeItem("gptoss-jit." + name);
    else store().setItem("gptoss-jit." + name, value);
  } catch {
    // Then it is not kept.
  }
  return null;
}

export const kept = (name, value) => local(() => localStorage, name, value);

// What is forgotten with the tab; a key is never written to the disk by us.
const inTab = new Map();
export function keptInTab(name, value) {
  if (value !== undefined) inTab.set(name, value);
  return local(() => sessionStorage, name, value) ?? inTab.get(name) ?? null;
}

// ---- conversations ----

function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export class Store {
  constructor() {
    this.database = null;
    this.listeners = [];
    try {
      this.channel = new BroadcastChannel("gptoss-jit");
      this.channel.onmessage = ({ data }) => this.listeners.forEach(listener => listener(data));
    } catch {
      this.channel = null;
    }
  }

  // All conversations; what the last page could not write any more comes from its rescue.
  async open() {
    try {
      const opening = indexedDB.open(DATABASE, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
      this.database = await asked(opening);
      const all = await asked(this.objects("readonly").getAll());
      return await this.rescued(all);
    } catch {
      this.database = null;
      return [];
    }
  }

  get isKept() {
    return !!this.database;
  }

  objects(mode) {
    return this.database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }

  // At once: a page that goes away would take an open transaction with it. A disk that is full may be known of only
  // when the transaction ends.
  change(run) {
    return new Promise((resolve, reject) => {
      const objects = this.objects("readwrite"), { transaction } = objects;
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
      run(objects);
      transaction.commit?.();
    });
  }

  async read(id) {
    return this.database ? asked(this.objects("readonly").get(id)) : undefined;
  }

  // Whether it is on the disk then: "kept", "full" where there is no room, or "none".
  async write(conversation) {
    if (!this.database) return "none";
    try {
      await this.change(objects => objects.put(conversation));
    } catch (error) {
      return error?.name === "QuotaExceededError" ? "full" : "none";
    }
    this.channel?.postMessage({ id: conversation.id });
    return "kept";
  }

  // Whether it is gone then.
  async remove(id) {
    if (!this.database) return true;
    try {
      await this.change(objects => objects.delete(id));
    } catch {
      return false;
    }
    this.channel?.postMessage({ id });
    return true;
  }

  // The page goes away, and the database would take too long: the last turn, which is the one that grows; or all of a
  // conversation for which the database has no room.
  rescue(conversation, isWhole = false) {
    const index = conversation.turns.length - 1;
    const rescued = isWhole ? { conversation } : { index, turn: conversation.turns[index] };
    try {
      localStorage.setItem(RESCUE + conversation.id, JSON.stringify(rescued));
    } catch {
      // There is no room; the database has all but the last second, or the person was asked before leaving.
    }
  }

  // A rescue is there until the database has what is in it. Of all conversations, or of this one.
  async rescued(all, only = "") {
    const names = Object.keys(localStorage).filter(name => name.startsWith(RESCUE + only));
    for (const name of names) {
      let conversation = null;
      try {
        conversation = withRescue(all, name.slice(RESCUE.length), JSON.parse(localStorage.getItem(name)));
      } catch {
        // Somebody else wrote it; the other conversations are there all the same.
      }
      if (!conversation || (await this.write(conversation)) === "kept") localStorage.removeItem(name);
    }
    return all;
  }
}

// Puts what was rescued into `all`; gives the conversation that it changed, if it did.
function withRescue(all, id, { index, turn, conversation: whole }) {
  const known = all.find(one => one.id === id);
  if (whole) {
    const [rescued] = imported(exported([whole]));
    if (known && known.changed > rescued.changed) return null;
    if (known) all.splice(all.indexOf(known), 1);
    all.push(rescued);
    return rescued;
  }
  const last = known?.turns[index];
  const size = one => one.content.length + one.reasoning.length;
  const grew = last?.role === "assistant" && size(last) <= size(turn);
  if (!grew || index !== known.turns.length - 1) return null;
  known.turns[index] = turn;
  return known;
}

// ---- files of conversations ----

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);

function expect(value, type, where) {
  const found = Array.isArray(value) ? "a list" : value === null ? "null" : `a ${typeof value}`;
  const isRight = type === "list" ? Array.isArray(value) : type === "object" ? isObject(value) : typeof value === type;
  if (!isRight) throw new ImportError(`${where} is ${value === undefined ? "missing" : found}; a ${type} is expected there.`);
  return value;
}

// Fields that are not known here are left out, whoever wrote the file.
function turnOf(value, where) {
  expect(value, "object", where);
  const content = expect(value.content, "string", `\`content\` of ${where}`);
  if (value.role === "user") {
    const files = expect(value.files ?? [], "list", `\`files\` of ${where}`);
    const file = ({ name, text }) => {
      expect(name, "string", `a file's name in ${where}`);
      return { name, text: expect(text, "string", `a file's text in ${where}`) };
    };
    return { role: "user", content, files: files.map(one => file(expect(one, "object", `a file of ${where}`))) };
  }
  if (value.role === "tool") return { role: "tool", content, call: expect(value.call, "string", `\`call\` of ${where}`) };
  if (value.role !== "assistant") {
    throw new ImportError(`\`role\` of ${where} is ${JSON.stringify(value.role)}; "user", "assistant" or "tool" is expected there.`);
  }
  const calls = expect(value.calls ?? [], "list", `\`calls\` of ${where}`).map(call => {
    expect(call, "object", `a call of ${where}`);
    const field = name => expect(call[name], "string", `\`${name}\` of a call of ${where}`);
    return { id: field("id"), name: field("name"), arguments: field("arguments") };
  });
  const reasoning = expect(value.reasoning ?? "", "string", `\`reasoning\` of ${where}`);
  const turn = { role: "assistant", content, reasoning, calls };
  for (const [name, type] of Object.entries(OUTCOMES)) {
    if (typeof value[name] === type && name !== "running") turn[name] = value[name];
  }
  return turn;
}

// The conversations of a file; an error says what is wrong with it, and where.
export function imported(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ImportError(`It is not JSON (${error.message}).`);
  }
  if (!isObject(value) || value.format !== FORMAT) throw new ImportError("It was not exported from this page.");
  if (value.version !== 1) throw new ImportError(`Its version is ${value.version}; this page reads version 1.`);
  const all = expect(value.conversations, "list", "`conversations`");
  return all.map((one, i) => {
    const where = `conversation ${i + 1}`;
    expect(one, "object", where);
    const turns = expect(one.turns, "list", `\`turns\` of ${where}`);
    const time = name => (Number.isFinite(one[name]) ? one[name] : Date.now());
    return {
      id: typeof one.id === "string" && one.id ? one.id : newId(),
      title: expect(one.title, "string", `\`title\` of ${where}`),
      created: time("created"),
      changed: time("changed"),
      turns: turns.map((turn, n) => turnOf(turn, `turn ${n + 1} of ${where}`)),
    };
  });
}
