// Markdown inside of a paragraph: emphasis, code, links, line breaks. Every step takes time in proportion to the text,
// whatever the text is.

import { element, joined } from "./tree.mjs";

// Emphasis in emphasis beyond this is text, so that no text makes the document too deep.
const MAX_DEPTH = 24;
const MAX_PARENTHESES = 16;
// A longer paragraph is shown as it is.
const MAX_LENGTH = 50_000;

const PLAIN = /[^\\`*_~[\]!<&\nh]+/y;
const ESCAPED = /\\([!-/:-@[-`{-~])/y;
const BARE_URL = /https?:\/\/[^\s<>"`[\]{}|\\^]+/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
const BREAK = /<br ?\/?>/iy;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/y;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const WORD = /[\p{L}\p{N}_]/u;
const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;

// The address of a link, if it is one that may be followed.
export function allowed(url) {
  return /^(?:https?:\/\/|mailto:)[^\s\u0000-\u001f]+$/i.test(url) ? url : null;
}

function link(url, children) {
  return element("a", { href: url, rel: "noopener noreferrer", target: "_blank" }, children);
}

function entity(found) {
  if (found[3]) return NAMED[found[3]];
  const code = found[1] ? Number.parseInt(found[1], 10) : Number.parseInt(found[2], 16);
  const is_none = code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000);
  return is_none ? "\ufffd" : String.fromCodePoint(code);
}

// For each run of backticks, where the next run of the same length is.
function codeSpans(text) {
  const runs = [];
  for (const run of text.matchAll(/`+/g)) runs.push({ at: run.index, length: run[0].length });
  const next = new Map(), ends = new Map();
  for (const run of runs.reverse()) {
    if (next.has(run.length)) ends.set(run.at, next.get(run.length));
    next.set(run.length, run.at);
  }
  return ends;
}

// `(address "title")` at this place: the address, and where it ends.
function destination(text, at) {
  let i = at + 1, url = "";
  while (text[i] === " " || text[i] === "\n") i++;
  if (text[i] === "<") {
    const from = ++i;
    while (i < text.length && !"<>\n".includes(text[i])) i++;
    if (text[i] !== ">") return null;
    url = text.slice(from, i++);
  } else {
    let depth = 0;
    const from = i;
    for (; i < text.length && text[i] > " "; i++) {
      if (text[i] === "(" && ++depth > MAX_PARENTHESES) return null;
      if (text[i] === ")" && depth-- === 0) break;
      if (text[i] === "\\") i++;
    }
    url = text.slice(from, i);
  }
  while (text[i] === " " || text[i] === "\n") i++;
  if (text[i] === '"' || text[i] === "'") {
    const quote = text[i++];
    while (i < text.length && text[i] !== quote && text[i] !== "[") i++;
    if (text[i++] !== quote) return null;
    while (text[i] === " ") i++;
  }
  if (text[i] !== ")") return null;
  const unescaped = url.replace(/\\([!-/:-@[-`{-~])/g, "$1");
  return { url: unescaped.replace(/&amp;/g, "&"), end: i + 1 };
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.out = [];      // texts, trees, and marks: {mark, n, depth}
    this.openers = { "*": [], _: [], "~": [] };   // places in `out`
    this.brackets = [];   // places in `out`
    this.spans = codeSpans(text);
    this.math = 0;      // where the next `\)` is
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  run() {
    const { text, out } = this;
    while (this.at < text.length) {
      const plain = this.match(PLAIN);
      if (plain) out.push(plain[0]);
      if (this.at < text.length) this.special(text[this.at]);
    }
    return finished(out);
  }

  special(c) {
    const { out } = this;
    if (c === "\n") return this.newline();
    if (c === "`") return this.code();
    if (c === "\\") return this.backslash();
    if (c === "[") return this.bracket("[");
    if (c === "]") return this.close();
    if (c === "!" && this.text[this.at + 1] === "[") return this.bracket("![");
    if (c === "*" || c === "_" || c === "~") return this.emphasis(c);
    if (c === "h" && !WORD.test(this.text[this.at - 1] ?? " ")) {
      const found = this.match(BARE_URL);
      if (found) return this.bare(found[0]);
    }
    if (c === "<") {
      if (this.match(BREAK)) return out.push(element("br"));
      const found = this.match(ANGLE_URL);
      const url = found && allowed(found[1]);
      if (url) return out.push(link(url, [found[1]]));
      if (found) return out.push(found[0]);
    }
    if (c === "&") {
      const found = this.match(ENTITY);
      if (found) return out.push(entity(found));
    }
    this.at++;
    return out.push(c);
  }

  newline() {
    const { out } = this;
    if (typeof out.at(-1) === "string") out[out.length - 1] = out.at(-1).trimEnd();
    while (SPACE.test(this.text[++this.at] ?? "x"));
    return out.push(element("br"));
  }

  code() {
    const from = this.at;
    while (this.text[this.at] === "`") this.at++;
    const n = this.at - from, end = this.spans.get(from);
    if (end === undefined) return this.out.push("`".repeat(n));
    let code = this.text.slice(this.at, end).replace(/\n/g, " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    this.at = end + n;
    return this.out.push(element("code", {}, [code]));
  }

  // A formula is shown as it was written: what looks like emphasis in it is none.
  backslash() {
    const { text } = this;
    if (text[this.at + 1] === "(") {
      if (this.math <= this.at) this.math = text.indexOf("\\)", this.at + 2);
      if (this.math < 0) this.math = text.length;
      if (this.math < text.length) {
        const formula = text.slice(this.at + 2, this.math);
        this.at = this.math + 2;
        return this.out.push(element("span", { class: "math" }, [formula.trim()]));
      }
    }
    const escaped = this.match(ESCAPED);
    if (escaped) return this.out.push(escaped[1]);
    this.at++;
    // A backslash at the end of a line asks for the break that comes anyway.
    return text[this.at] === "\n" ? undefined : this.out.push("\\");
  }

  bare(url) {
    let end = url.length;
    let open = 0;
    for (const c of url) open += c === "(" ? 1 : c === ")" ? -1 : 0;
    for (; end > 0; end--) {
      const c = url[end - 1];
      if (c === ")" && open < 0) open++;
      else if (!".,;:!?'*_~".includes(c)) break;
    }
    const shown = url.slice(0, end);
    this.at -= url.length - end;
    this.out.push(/^https?:\/\/./.test(shown) ? link(shown, [shown]) : shown);
  }

  bracket(mark) {
    this.at += mark.length;
    this.brackets.push(this.out.length);
    this.out.push({ mark, n: 1 });
  }

  close() {
    const opener = this.brackets.pop();
    const found = opener !== undefined && this.text[this.at + 1] === "(" ? destination(this.text, this.at + 1) : null;
    const url = found && allowed(found.url);
    if (!url) {
      this.at++;
      return this.out.push("]");
    }
    this.at = found.end;
    const { mark } = this.out[opener];
    this.forget(opener);
    const inside = withoutLinks(finished(this.out.splice(opener).slice(1)));
    // No picture is fetched: its description becomes the link.
    this.out.push(link(url, inside.length ? inside : [url]));
    if (mark === "[") this.brackets = [];   // links have no links in them
    return undefined;
  }

  // Marks behind this place match nothing any more.
  forget(place) {
    for (const list of Object.values(this.openers)) while (list.length && list.at(-1) > place) list.pop();
    while (this.brackets.length && this.brackets.at(-1) > place) this.brackets.pop();
  }

  emphasis(c) {
    const { text, out } = this, from = this.at;
    while (text[this.at] === c) this.at++;
    let n = this.at - from;
    const before = text[from - 1] ?? " ", after = text[this.at] ?? " ";
    if (c === "~" && n !== 2) return out.push(c.repeat(n));
    const isLeft = !SPACE.test(after) && (!PUNCTUATION.test(after) || SPACE.test(before) || PUNCTUATION.test(before));
    const isRight = !SPACE.test(before) && (!PUNCTUATION.test(before) || SPACE.test(after) || PUNCTUATION.test(after));
    const opens = isLeft && (c !== "_" || !isRight || PUNCTUATION.test(before));
    const closes = isRight && (c !== "_" || !isLeft || PUNCTUATION.test(after));
    const list = this.openers[c];
    while (closes && n > 0 && list.length) {
      const place = list.at(-1), opener = out[place];
      const depth = 1 + out.slice(place + 1).reduce((most, tree) => Math.max(most, tree.depth ?? 0), 0);
      if (depth > MAX_DEPTH) {
        list.length = 0;   // nor would any further one be less deep
        break;
      }
      const k = Math.min(2, n, opener.n);
      this.forget(place);
      const inside = finished(out.splice(place + 1));
      const name = c === "~" ? "del" : k === 2 ? "strong" : "em";
      opener.n -= k;
      n -= k;
      if (opener.n === 0) {
        list.pop();
        out.pop();
      }
      out.push({ ...element(name, {}, inside), depth });
    }
    if (n > 0 && opens) {
      list.push(out.length);
      out.push({ mark: c, n });
    } else if (n > 0) {
      out.push(c.repeat(n));
    }
    return undefined;
  }
}

function withoutLinks(trees) {
  return joined(
    trees.flatMap(tree => {
      if (!tree.name) return [tree];
      const children = withoutLinks(tree.children);
      return tree.name === "a" ? children : [{ ...tree, children }];
    }),
  );
}

// Marks that matched nothing are text.
function finished(out) {
  return joined(out.map(tree => (tree.mark ? tree.mark.repeat(tree.n) : tree)));
}

export function inline(text) {
  return text.length > MAX_LENGTH ? [text] : new Inline(text.trim()).run();
}
