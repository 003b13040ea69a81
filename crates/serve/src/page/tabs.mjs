// Tabs of one browser: a conversation is answered in one of them at a time, and the others follow it. They talk over a
// channel: who answers says so when it begins and ends and whenever somebody asks. A tab that is gone says nothing.

import { newId } from "./store.mjs";

const LOOK_MS = 2000;
const MAX_UNANSWERED = 3;

export class Tabs {
  // `hooks`: running() (ids), stop(id), changed(id): it began or ended elsewhere; doubled(id): two tabs began at once,
  // and this one gives way.
  constructor(hooks) {
    this.hooks = hooks;
    this.me = newId();
    this.elsewhere = new Map();   // by a conversation's id: how often nobody answered for it
    try {
      this.channel = new BroadcastChannel("gptoss-jit.tabs");
      this.channel.onmessage = ({ data }) => this.hear(data);
    } catch {
      this.channel = null;
    }
    setInterval(() => this.look(), LOOK_MS);
    this.post({ asks: true });
  }

  // Whether another tab answers it.
  runs(id) {
    return this.elsewhere.has(id);
  }

  began(id) {
    this.post({ runs: id });
  }

  ended(id) {
    this.post({ ended: id });
  }

  // The page goes away.
  leave() {
    this.hooks.running().forEach(id => this.ended(id));
  }

  // Has the tab that answers it stop.
  stop(id) {
    this.post({ stop: id });
  }

  post(told) {
    this.channel?.postMessage({ ...told, tab: this.me });
  }

  hear({ tab, runs, ended, asks, stop }) {
    if (asks) this.hooks.running().forEach(id => this.began(id));
    if (stop) this.hooks.stop(stop);
    if (runs && this.hooks.running().includes(runs)) {
      if (tab < this.me) this.hooks.doubled(runs);
      else this.began(runs);
    } else if (runs) {
      const isNew = !this.elsewhere.has(runs);
      this.elsewhere.set(runs, 0);
      if (isNew) this.hooks.changed(runs);
    }
    if (ended && this.elsewhere.delete(ended)) this.hooks.changed(ended);
  }

  look() {
    if (!this.elsewhere.size) return;
    for (const [id, n] of [...this.elsewhere]) {
      this.elsewhere.set(id, n + 1);
      if (n >= MAX_UNANSWERED) {
        this.elsewhere.delete(id);
        this.hooks.changed(id);
      }
    }
    this.post({ asks: true });
  }
}
