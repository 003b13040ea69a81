// The message that is being written, with its files.

import { keptInTab } from "./store.mjs";

// A file beyond this is more than any context.
const MAX_FILE_BYTES = 8 << 20;

const $ = id => document.getElementById(id);

export class Compose {
  // `hooks`: send({content, files}), whether it was taken; toast.
  constructor(hooks) {
    this.hooks = hooks;
    this.files = [];
    const box = $("message");
    box.value = keptInTab("message") ?? "";
    box.addEventListener("input", () => {
      keptInTab("message", box.value);
      this.fit();
    });
    box.addEventListener("keydown", event => {
      // While a character is being composed, Enter belongs to the keyboard.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      $("compose").requestSubmit();
    });
    box.addEventListener("paste", event => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add([...event.clipboardData.files]);
    });
    $("compose").addEventListener("submit", event => {
      event.preventDefault();
      this.send();
    });
    $("attach").addEventListener("click", () => $("chosen").click());
    $("chosen").addEventListener("change", async () => {
      await this.add([...$("chosen").files]);
      $("chosen").value = "";
    });
    this.drop();
    this.fit();
  }

  drop() {
    const hasFiles = event => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", event => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      $("drop").hidden = false;
    });
    document.addEventListener("dragleave", event => {
      if (!event.relatedTarget) $("drop").hidden = true;
    });
    document.addEventListener("drop", event => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      $("drop").hidden = true;
      this.add([...event.dataTransfer.files]);
    });
  }

  // Text alone can be sent: what is none is refused by its name.
  async add(files) {
    for (const file of files) {
      if (file.size > MAX_FILE_BYTES) {
        const size = (file.size / (1 << 20)).toFixed(1), most = MAX_FILE_BYTES >> 20;
        this.hooks.toast(`${file.name} was not added: it has ${size} MiB, and at most ${most} are taken.`);
        continue;
      }
      try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
        if (text.includes("\0")) throw new TypeError("a zero byte");
        this.files.push({ name: file.name, text });
      } catch {
        this.hooks.toast(`${file.name} was not added: it is not text in UTF-8.`);
      }
    }
    this.draw();
    $("message").focus();
  }

  draw() {
    const list = $("attached");
    list.hidden = !this.files.length;
    list.replaceChildren(
      ...this.files.map(file => {
        const item = document.createElement("li"), remove = document.createElement("button");
        item.appendChild(document.createElement("span")).textContent = file.name;
        remove.type = "button";
        remove.className = "icon";
        remove.ariaLabel = `Leave ${file.name} out`;
        remove.append($("closed").firstElementChild.cloneNode(true));
        remove.addEventListener("click", () => {
          this.files = this.files.filter(other => other !== file);
          this.draw();
          $("message").focus();
        });
        item.append(remove);
        return item;
      }),
    );
  }

  send() {
    const content = $("message").value;
    if (!content.trim() && !this.files.length) return;
    if (this.hooks.send({ content, files: this.files })) this.clear();
  }

  clear() {
    $("message").value = "";
    keptInTab("message", "");
    this.files = [];
    this.draw();
    this.fit();
  }

  fit() {
    const box = $("message");
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`;
  }
}
