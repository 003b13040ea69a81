// The page: which conversation is shown, what is being answered, and who is told of what.

import { Answers } from "./answer.mjs";
import { Compose } from "./compose.mjs";
import { List } from "./list.mjs";
import { codeOf } from "./markdown.mjs";
import { models } from "./server.mjs";
import { Settings } from "./settings.mjs";
import { listed } from "./side.mjs";
import { Store, kept, keptInTab, newConversation, newId } from "./store.mjs";
import { Tabs } from "./tabs.mjs";
import { AssistantView, UserView, ending } from "./turns.mjs";

const $ = id => document.getElementById(id);
const TITLE_LENGTH = 60;
const TOAST_MS = 10_000;
const MAX_SAID = 2000;
const NEAR_END = 60;

const store = new Store();
const settings = new Settings();
const all = new Map();      // conversations by id
let current = newConversation();
let views = new Map();      // of the current conversation's turns
let contexts = new Map();   // tokens, by a model's name
let due = false;            // whether a drawing is asked for
let restsUntil = 0;         // drawing leaves most of the time to the person
let follows = true;         // whether the end stays in sight
const changed = new Set();  // turns to draw

// ---- what is said ----

let toastTimer = 0;
function toast(text, label, press) {
  const [span, button] = $("toast").children;
  span.textContent = text;
  button.textContent = label ?? "Close";
  button.onclick = () => {
    $("toast").hidden = true;
    press?.();
  };
  $("toast").hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => ($("toast").hidden = true), TOAST_MS);
}

// For those who listen: once for each answer, not for each token.
function say(text) {
  $("said").textContent = text;
}

// The clipboard's API is there for pages of this machine and over HTTPS alone.
async function copy(text, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "unseen";
    document.body.append(box);
    box.select();
    isDone = document.execCommand("copy");
    box.remove();
    button.focus();
  }
  const before = button.dataset.text ?? button.textContent;
  button.dataset.text = before;
  button.textContent = isDone ? "Copied" : "Not copied";
  say(button.textContent);
  setTimeout(() => (button.textContent = before), 1500);
}

// ---- the conversation that is shown ----

// Whether it is being answered, here or in another tab.
function isBusy(conversation) {
  return answers.isRunning(conversation) || tabs.runs(conversation.id);
}

// Nothing of it can be changed meanwhile; says so.
function isHeld(conversation) {
  if (!isBusy(conversation)) return false;
  toast(`${tabs.runs(conversation.id) ? "Another tab is writing an answer here" : "An answer is being written"}. Stop it first.`);
  return true;
}

function stop(conversation) {
  if (answers.isRunning(conversation)) answers.stop(conversation);
  else tabs.stop(conversation.id);
}

function titled() {
  const title = current.title || "New chat";
  $("title").textContent = title;
  document.title = current.title ? `${current.title} - gptoss-jit` : "gptoss-jit";
}

function scrollToEnd() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function show(conversation) {
  current = conversation;
  views = new Map();
  $("log").replaceChildren();
  for (const turn of current.turns) add(turn);
  mark();
  follows = true;
  scrollToEnd();
  titled();
  states();
  list.draw();
  // So that a reload shows the same.
  const hash = all.has(current.id) ? `#${current.id}` : "";
  if (location.hash !== hash) history.pushState(null, "", hash || location.pathname + location.search);
}

function add(turn) {
  if (turn.role === "tool") {
    for (const view of views.values()) view.results?.set(turn.call, turn.content);
    return;
  }
  const view = turn.role === "user" ? new UserView(turn, actions) : new AssistantView(turn, actions);
  views.set(turn, view);
  $("log").append(view.node);
}

// The last answer can be continued, and its calls be given results.
function mark() {
  for (const [turn, view] of views) {
    if (turn.role === "user") continue;
    view.isLast = turn === current.turns.at(-1);
    if (turn.running && !isBusy(current)) turn.interrupted = true;
    if (turn.interrupted) delete turn.running;
    view.draw();
  }
}

function states() {
  const isRunning = isBusy(current);
  $("send").hidden = isRunning;
  $("stop").hidden = !isRunning;
  $("log").setAttribute("aria-busy", String(isRunning));
  $("hello").hidden = current.turns.length > 0;
}

// Once a frame at most, however many tokens come, and for a fifth of the time, however long a block is.
function draw(turn) {
  changed.add(turn);
  if (due) return;
  due = true;
  const wait = restsUntil - performance.now();
  if (wait > 16) setTimeout(() => requestAnimationFrame(drawChanged), wait);
  else requestAnimationFrame(drawChanged);
}

function drawChanged() {
  const from = performance.now();
  due = false;
  for (const one of changed) views.get(one)?.draw();
  changed.clear();
  if (follows) scrollToEnd();
  const now = performance.now();
  restsUntil = now + 4 * (now - from);
}

// Leaves out a turn and what follows it; that can be undone.
function cutAt(index, then) {
  const conversation = current, before = [...conversation.turns];
  const n = before.length - index - (before[index]?.role === "user" ? 1 : 0);
  conversation.turns.length = index;
  then();
  if (n > 0) {
    toast("What was there before was replaced.", "Undo", () => {
      if (tabs.runs(conversation.id)) return isHeld(conversation);
      answers.stop(conversation);
      conversation.turns = before;
      save(conversation);
      show(conversation);
    });
  }
}

function answer(conversation = current) {
  const model = $("model").value;
  answers.begin(conversation, model, contexts.get(model));
  tabs.began(conversation.id);
  if (conversation === current) show(current);
  say("The model is answering.");
}

const actions = {
  copy,
  edited(turn, content) {
    if (isHeld(current)) return undefined;
    cutAt(current.turns.indexOf(turn), () => {
      current.turns.push({ ...turn, content });
      answer();
    });
    return $("message").focus();
  },
  again(turn) {
    if (isHeld(current)) return undefined;
    return cutAt(current.turns.indexOf(turn), () => answer());
  },
  goOn() {
    if (!isHeld(current)) answer();
  },
  results(turns) {
    if (isHeld(current)) return;
    current.turns.push(...turns);
    answer();
    $("message").focus();
  },
};

// ---- conversations ----

let warned = "";                // what was said last of what is not kept
const unkept = new Set();       // conversations for which the browser has no room
const WARNINGS = {
  full: ["The browser's storage is full: new messages are only in this tab. Export them, or delete other conversations.", "Export"],
  none: ["This browser does not save conversations for this page. Export those that you need."],
};

async function save(conversation) {
  if (tabs.runs(conversation.id)) {
    isHeld(conversation);
    return refresh(conversation.id);
  }
  const is = await store.write(conversation);
  if (is === "full") unkept.add(conversation);
  else unkept.delete(conversation);
  if (is === "kept" && !unkept.size) warned = "";
  if (is === "kept" || is === warned) return undefined;
  warned = is;
  return toast(...WARNINGS[is], () => unkept.size && list.export([...unkept], "gptoss-jit-conversations"));
}

// As another tab has it.
async function refresh(id) {
  const read = await store.read(id).catch(() => null);
  if (read && !tabs.runs(id)) await store.rescued([read], id);
  if (read === null || answers.isRunning({ id })) return;
  if (read) all.set(id, read);
  else all.delete(id);
  if (current.id !== id || !read) return list.draw();
  const isAtEnd = follows, { scrollTop } = $("scroll");
  show(read);
  if (isAtEnd) return;
  follows = false;
  $("scroll").scrollTop = scrollTop;
}

const chats = {
  all,
  toast,
  save,
  titled,
  get current() {
    return current;
  },
  isRunning: isBusy,
  open(conversation) {
    show(conversation);
    listed(false);
    $("message").focus();
  },
  // Whether it is.
  remove(conversation) {
    if (tabs.runs(conversation.id)) return !isHeld(conversation);
    answers.stop(conversation);
    all.delete(conversation.id);
    unkept.delete(conversation);
    store.remove(conversation.id).then(isGone => {
      if (!isGone) toast("The browser could not delete it: it will be back after a reload.");
      unkept.forEach(save);   // there may be room now
    });
    if (conversation === current) show(newConversation());
    list.draw();
    return true;
  },
  restore(conversation) {
    all.set(conversation.id, conversation);
    save(conversation);
    show(conversation);
  },
};

const answers = new Answers(settings, {
  async save(conversation) {
    if (all.has(conversation.id)) await save(conversation);
  },
  grew(conversation, turn) {
    if (conversation === current) draw(turn);
  },
  ended(conversation, turn, saved) {
    saved.then(() => tabs.ended(conversation.id));
    if (conversation === current) {
      if (!current.turns.includes(turn)) show(current);
      mark();
      states();
      draw(turn);
      const text = turn.error ? `${turn.error} ${turn.advice}` : `${ending(turn)} ${turn.content}`;
      say(`Answer: ${text.trim().slice(0, MAX_SAID)}`);
    }
    list.draw();
  },
  locked(conversation) {
    unlock("", conversation);
  },
});

const tabs = new Tabs({
  running: () => [...answers.running.keys()],
  stop: id => answers.stop({ id }),
  changed(id) {
    refresh(id).then(states);
  },
  doubled(id) {
    const { conversation } = answers.running.get(id);
    answers.rename(conversation, newId());
    conversation.title = `${conversation.title} (copy)`;
    all.set(conversation.id, conversation);
    tabs.began(conversation.id);
    save(conversation);
    refresh(id);
    if (conversation === current) show(current);
    toast("Another tab sent a message in this conversation at the same time: yours continues as a copy.");
  },
});

const list = new List(chats);

const compose = new Compose({
  toast,
  send({ content, files }) {
    if (isHeld(current)) return false;
    if (!current.turns.length) {
      const line = content.trim().split("\n")[0] || files[0].name;
      current.title ||= line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH).trimEnd()}…` : line;
    }
    all.set(current.id, current); // also where another tab deleted it
    // A question that was never answered is asked with this one.
    current.turns.push({ role: "user", content, files });
    answer();
    return true;
  },
});

function begin() {
  show(newConversation());
  listed(false);
  $("message").focus();
}

// ---- the key ----

let waiting = null;   // the conversation that is asked again with the key
function unlock(refused, conversation = waiting) {
  waiting = conversation;
  $("refused").textContent = refused;
  if (!$("unlock").open) $("unlock").showModal();
  $("key").focus();
}

async function unlocked() {
  const key = $("key").value.trim();
  if (!key) return unlock("Write the key that whoever runs the server gave you.");
  keptInTab("key", key);
  try {
    await listModels();
  } catch (error) {
    if (error.status === 401) {
      keptInTab("key", null);
      return unlock("The server does not take this key.");
    }
  }
  $("key").value = "";
  $("unlock").close();
  const conversation = waiting;
  waiting = null;
  if (conversation?.turns.at(-1)?.role !== "user" && conversation?.turns.at(-1)?.role !== "tool") return undefined;
  return answer(conversation);
}

// ---- models ----

async function listModels() {
  const found = await models();
  contexts = new Map(found.map(({ id, context }) => [id, context]));
  const wanted = kept("model");
  const options = found.map(({ id }) => new Option(id, id));
  $("model").replaceChildren(...options);
  if (contexts.has(wanted)) $("model").value = wanted;
  $("model").hidden = !found.length;
}

async function untilListed() {
  try {
    await listModels();
  } catch (error) {
    // A key of before is wrong now; else the server is loading, or not there yet.
    if (error.status === 401) unlock("The server does not take this key.");
    else setTimeout(untilListed, 2000);
  }
}

// ---- the page's own things ----

const THEMES = ["", "light", "dark"];
function theme(next) {
  const root = document.documentElement;
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  kept("theme", next || null);
  $("theme").title = $("theme").ariaLabel = `Theme: ${next || "the system's"}`;
}
theme(document.documentElement.dataset.theme ?? "");
$("theme").addEventListener("click", () => {
  theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length]);
  say($("theme").ariaLabel);
});

$("scroll").addEventListener("scroll", () => {
  const { scrollHeight, scrollTop, clientHeight } = $("scroll");
  follows = scrollHeight - scrollTop - clientHeight < NEAR_END;
  $("down").hidden = follows;
}, { passive: true });
$("down").addEventListener("click", () => {
  follows = true;
  scrollToEnd();
  $("message").focus();
});
$("log").addEventListener("click", event => {
  const button = event.target.closest("button.copy");
  if (button) copy(codeOf(button.closest(".code")), button);
});
$("stop").addEventListener("click", () => {
  stop(current);
  $("message").focus();
});
$("new").addEventListener("click", begin);
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  $("message").focus();
});
$("model").addEventListener("change", () => kept("model", $("model").value));
$("unlocking").addEventListener("submit", event => {
  event.preventDefault();
  unlocked();
});
$("locked").addEventListener("click", () => $("unlock").close());

document.addEventListener("keydown", event => {
  const isCommand = event.ctrlKey || event.metaKey, name = event.key.toLowerCase();
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (document.body.classList.contains("listed")) $("closed").click();
    else if (isBusy(current)) stop(current);
  } else if (isCommand && event.shiftKey && name === "o") {
    event.preventDefault();
    begin();
  } else if (isCommand && !event.shiftKey && name === "k") {
    event.preventDefault();
    document.body.classList.remove("narrowed");
    listed(true);
    $("search").focus();
    $("search").select();
  }
});

function ofHash() {
  return all.get(location.hash.slice(1));
}
addEventListener("popstate", () => {
  const wanted = ofHash();
  if (wanted !== current) show(wanted ?? newConversation());
});
addEventListener("pagehide", () => {
  answers.leave(store);
  unkept.forEach(conversation => store.rescue(conversation, true));
  tabs.leave();
});
addEventListener("beforeunload", event => {
  if (unkept.size) event.preventDefault();
});
addEventListener("pageshow", event => {
  if (event.persisted) location.reload();
});

// Another tab wrote or deleted a conversation.
store.listeners.push(({ id }) => refresh(id));

for (const conversation of await store.open()) all.set(conversation.id, conversation);
show(ofHash() ?? current);
compose.fit();
untilListed();
