// The list of conversations: opened, searched, renamed, deleted, exported, imported.

import { ImportError, exported, imported, newId } from "./store.mjs";

const $ = id => document.getElementById(id);

function icon(name, label, press) {
  const node = document.createElement("button");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "use"));
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  node.type = "button";
  node.className = "icon";
  node.title = node.ariaLabel = label;
  node.append(svg);
  node.addEventListener("click", press);
  return node;
}

function has(conversation, words) {
  const texts = [conversation.title, ...conversation.turns.map(({ content }) => content)].join("\n").toLowerCase();
  return words.every(word => texts.includes(word));
}

export class List {
  // `chats`: all (a Map by id), current, isRunning, and what is done with one: open, save, remove, restore.
  constructor(chats) {
    this.chats = chats;
    $("search").addEventListener("input", () => this.draw());
    $("search").addEventListener("keydown", event => {
      if (event.key === "Enter") $("list").querySelector(".open")?.click();
      if (event.key === "ArrowDown") $("list").querySelector(".open")?.focus();
    });
    $("list").addEventListener("keydown", event => this.step(event));
    $("list").addEventListener("focusin", event => this.rove(event.target.closest("li")));
    $("export").addEventListener("click", () => this.export([...this.chats.all.values()], "gptoss-jit-conversations"));
    $("import").addEventListener("click", () => $("imported").click());
    $("imported").addEventListener("change", async () => {
      await this.import([...$("imported").files]);
      $("imported").value = "";
    });
  }

  draw() {
    const { chats } = this;
    if ($("list").querySelector("input")) return;   // a title is being written
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const sorted = [...chats.all.values()].sort((one, other) => other.changed - one.changed);
    const found = sorted.filter(conversation => has(conversation, words));
    const focused = document.activeElement?.closest?.("#list li")?.dataset.id;
    $("list").replaceChildren(...found.map(conversation => this.item(conversation)));
    if (focused) $("list").querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
    this.rove($("list").querySelector(".current") ?? $("list").firstElementChild);
    $("none").hidden = found.length > 0;
    $("none").textContent = words.length ? "No conversation has these words." : "Conversations will be listed here.";
    $("export").disabled = !chats.all.size;
  }

  item(conversation) {
    const { chats } = this, title = conversation.title || "New chat";
    const item = document.createElement("li"), open = item.appendChild(document.createElement("button"));
    item.dataset.id = conversation.id;
    item.classList.toggle("current", conversation === chats.current);
    item.classList.toggle("running", chats.isRunning(conversation));
    open.type = "button";
    open.className = "open";
    open.appendChild(document.createElement("span")).textContent = title;
    if (conversation === chats.current) open.setAttribute("aria-current", "true");
    if (chats.isRunning(conversation)) open.setAttribute("aria-description", "is being answered");
    open.title = title;
    open.addEventListener("click", () => chats.open(conversation));
    item.append(
      icon("rename", `Rename ${title}`, () => this.rename(conversation, item)),
      icon("export", `Export ${title}`, () => this.export([conversation], title)),
      icon("delete", `Delete ${title}`, () => this.remove(conversation, item)),
    );
    return item;
  }

  // The list is one stop for Tab, with the buttons of one conversation; arrow keys walk it.
  rove(to) {
    for (const node of $("list").querySelectorAll("button")) node.tabIndex = node.closest("li") === to ? 0 : -1;
  }

  // Arrow keys, Delete and F2.
  step(event) {
    const item = event.target.closest("li"), conversation = this.chats.all.get(item?.dataset.id);
    if (!conversation || event.target.localName === "input") return;
    const to = { ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling ?? $("search") }[event.key];
    if (to) {
      event.preventDefault();
      (to.querySelector?.(".open") ?? to).focus();
    }
    if (event.key === "Delete") this.remove(conversation, item);
    if (event.key === "F2") this.rename(conversation, item);
  }

  rename(conversation, item) {
    const box = document.createElement("input");
    box.value = conversation.title;
    box.setAttribute("aria-label", "Title");
    let isDone = false;
    const done = isKept => {
      if (isDone) return;
      isDone = true;   // taking the field away is a blur, too
      const title = box.value.trim();
      if (isKept && title && title !== conversation.title) {
        conversation.title = title;
        this.chats.save(conversation);
      }
      box.replaceWith(document.createTextNode(""));
      this.draw();
      this.chats.titled();
      $("list").querySelector(`[data-id="${CSS.escape(conversation.id)}"] .open`)?.focus();
    };
    box.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      event.preventDefault();
      done(event.key === "Enter");
    });
    box.addEventListener("blur", () => done(true));
    item.replaceChildren(box);
    box.focus();
    box.select();
  }

  // Without a question, since it can be undone.
  remove(conversation, item) {
    const next = item.nextElementSibling?.dataset.id ?? item.previousElementSibling?.dataset.id;
    if (!this.chats.remove(conversation)) return;
    const open = next && $("list").querySelector(`[data-id="${CSS.escape(next)}"] .open`);
    (open || $("new")).focus();
    this.chats.toast(`“${conversation.title || "New chat"}” was deleted.`, "Undo", () => this.chats.restore(conversation));
  }

  export(conversations, title) {
    const name = title.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 60) || "conversation";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([exported(conversations)], { type: "application/json" }));
    link.download = `${name}-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  // One that is here unchanged stays as it is; one that is here with other turns comes as another.
  async import(files) {
    let n = 0, known = 0;
    for (const file of files) {
      let all;
      try {
        all = imported(await file.text());
      } catch (error) {
        if (!(error instanceof ImportError)) throw error;
        this.chats.toast(`${file.name} was not imported. ${error.message}`);
        return;
      }
      for (const conversation of all) {
        const here = this.chats.all.get(conversation.id);
        if (here && exported(imported(exported([here]))[0].turns) === exported(conversation.turns)) known++;
        else {
          if (here) conversation.id = newId();
          this.chats.all.set(conversation.id, conversation);
          this.chats.save(conversation);
          n++;
        }
      }
    }
    this.draw();
    const told = known ? ` ${known} ${known === 1 ? "was" : "were"} here already.` : "";
    this.chats.toast(`${n} conversation${n === 1 ? "" : "s"} imported.${told}`);
  }
}
