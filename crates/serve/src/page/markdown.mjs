// Markdown to trees: headings, paragraphs, lists, quotes, tables, code. What is not known here is text, HTML too.
//
// `Shown` is a text that grows in the document: only its last block is read again.

import { highlighted } from "./highlight.mjs";
import { inline } from "./inline.mjs";
import { build, element, joined, patch } from "./tree.mjs";

// Lists and quotes in each other beyond this are text.
const MAX_DEPTH = 12;
const MAX_COLUMNS = 100;
const MAX_FORMULA_LINES = 60;
// Longer lines are no rules and no heads of tables.
const MAX_MARK = 2000;

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const UNDERLINE = /^ {0,3}(=+|-+) *$/;
const DELIMITERS = /^ {0,3}\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$/;
const FORMULA = /^ {0,3}(\\\[|\$\$)/;

const isBlank = line => !/\S/.test(line);
const indentOf = line => line.length - line.trimStart().length;

// A line with the tabs of its indentation as spaces.
function untabbed(line) {
  if (line.endsWith("\r")) line = line.slice(0, -1);
  if (!/^ *\t/.test(line)) return line;
  let columns = 0, i = 0;
  for (; line[i] === " " || line[i] === "\t"; i++) columns += line[i] === "\t" ? 4 - (columns % 4) : 1;
  return " ".repeat(columns) + line.slice(i);
}

function isRule(line) {
  return line.length < MAX_MARK && RULE.test(line);
}

function fence(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

// Whether a line ends a paragraph that it follows.
function interrupts(line) {
  if (fence(line) || HEADING.test(line) || isRule(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return !!item && item[3] !== "" && /^(?:[-*+]|1[.)])$/.test(item[2]);
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "");
  const found = [];
  let cell = "";
  for (let i = 0; i < row.length; i++) {
    if (row[i] === "\\" && row[i + 1] === "|") cell += row[++i];
    else if (row[i] === "|") {
      found.push(cell);
      cell = "";
    } else cell += row[i];
  }
  if (cell.trim() || !row.endsWith("|")) found.push(cell);
  return found;
}

function isTable(lines, i) {
  const head = lines[i], marks = lines[i + 1];
  if (marks === undefined || !head.includes("|") || !marks.includes("-")) return false;
  if (head.length > MAX_MARK || marks.length > MAX_MARK || !DELIMITERS.test(marks)) return false;
  const n = cells(head).length;
  return n === cells(marks).length && n <= MAX_COLUMNS;
}

// Each line is a box of its own: where code grows, only its last line is laid out again.
function codeLines(trees) {
  const lines = [[]];
  for (const tree of trees) {
    const parts = (tree.name ? tree.children[0] : tree).split("\n");
    parts.forEach((part, i) => {
      if (i > 0) lines.push([]);
      if (part) lines.at(-1).push(tree.name ? { ...tree, children: [part] } : part);
    });
  }
  return lines.map(line => element("span", { class: "line" }, line.length ? line : [element("br")]));
}

// The code of a block in the document, as it was written.
export function codeOf(pre) {
  return Array.from(pre.querySelectorAll(".line"), line => line.textContent).join("\n");
}

export function codeBlock(language, code) {
  const bar = [element("span", {}, [language || "text"]), element("button", { type: "button", class: "copy" }, ["Copy"])];
  const attributes = { tabindex: "0", role: "group", "aria-label": language ? `Code, ${language}` : "Code" };
  const body = element("code", {}, codeLines(highlighted(language, code)));
  return element("div", { class: "code" }, [element("div", { class: "bar" }, bar), element("pre", attributes, [body])]);
}

class Blocks {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.i = 0;
    this.found = [];   // {tree, line}: the line where it begins
  }

  run() {
    const { lines } = this;
    while (this.i < lines.length) {
      if (isBlank(lines[this.i])) {
        this.i++;
        continue;
      }
      const line = this.i;
      this.found.push({ tree: this.block(lines[line]), line });
    }
    return this.found;
  }

  block(line) {
    const fenced = fence(line);
    if (fenced) return this.fenced(fenced);
    if (indentOf(line) >= 4) return this.indented();
    const heading = HEADING.exec(line);
    if (heading) return this.heading(heading);
    if (isRule(line)) {
      this.i++;
      return element("hr");
    }
    if (this.depth < MAX_DEPTH && QUOTE.test(line)) return this.quote();
    if (this.depth < MAX_DEPTH && ITEM.test(line)) return this.list();
    if (isTable(this.lines, this.i)) return this.table();
    return (FORMULA.test(line) && this.formula(line)) || this.paragraph();
  }

  fenced([, indent, mark, language]) {
    const { lines } = this, code = [];
    const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},} *$`);
    for (this.i++; this.i < lines.length && !end.test(lines[this.i]); this.i++) {
      const line = lines[this.i];
      code.push(line.slice(Math.min(indentOf(line), indent.length)));
    }
    this.i++;
    return codeBlock(language.trim().split(/[\s{]/)[0].slice(0, 30), code.join("\n"));
  }

  indented() {
    const { lines } = this, code = [];
    for (; this.i < lines.length && (isBlank(lines[this.i]) || indentOf(lines[this.i]) >= 4); this.i++) {
      code.push(lines[this.i].slice(4));
    }
    return codeBlock("", code.join("\n").trimEnd());
  }

  // The page has two levels of headings of its own.
  heading([, marks, text = ""]) {
    this.i++;
    let shown = text.trim(), end = shown.length;
    while (shown[end - 1] === "#") end--;
    if (end === 0 || shown[end - 1] === " ") shown = shown.slice(0, end);
    return element(`h${Math.min(marks.length + 2, 6)}`, {}, inline(shown));
  }

  quote() {
    const { lines } = this, inside = [];
    for (; this.i < lines.length; this.i++) {
      const line = lines[this.i];
      if (QUOTE.test(line)) inside.push(line.replace(QUOTE, ""));
      else if (isBlank(line) || isBlank(inside.at(-1)) || interrupts(line)) break;
      else inside.push(line);
    }
    return element("blockquote", {}, blocks(inside, this.depth + 1));
  }

  list() {
    const { lines } = this, first = ITEM.exec(lines[this.i]), items = [];
    const isNext = line => ITEM.exec(line)?.[2].at(-1) === first[2].at(-1) && !isRule(line);
    let isLoose = false;
    while (this.i < lines.length && isNext(lines[this.i])) {
      const { inside, hasGap, ends } = this.item(ITEM.exec(lines[this.i]), isNext);
      isLoose ||= hasGap;
      items.push(inside);
      if (ends) break;
    }
    const start = Number.parseInt(first[2], 10);
    const isOrdered = !Number.isNaN(start);
    const attributes = isOrdered && start !== 1 ? { start: String(start) } : {};
    return element(isOrdered ? "ol" : "ul", attributes, items.map(inside => this.itemTree(inside, isLoose)));
  }

  // The lines of an item; a line that is indented less than its text and begins a list of its own counts as inside,
  // since models write such lists.
  item([head, indent, , space], isNext) {
    const { lines } = this;
    const width = space.length > 4 || !space ? head.trimEnd().length + 1 : head.length;
    const inside = [lines[this.i].slice(width)];
    const belongs = line => indentOf(line) >= width || (indentOf(line) > indent.length + 1 && ITEM.test(line.trimStart()));
    let hasGap = false;
    for (this.i++; this.i < lines.length; this.i++) {
      const line = lines[this.i];
      if (isBlank(line)) {
        let next = this.i + 1;
        while (next < lines.length && isBlank(lines[next])) next++;
        if (next === lines.length) return { inside, hasGap, ends: true };
        if (!belongs(lines[next])) {
          const ends = !isNext(lines[next]);
          this.i = next;
          return { inside, hasGap: hasGap || !ends, ends };
        }
        for (; this.i < next; this.i++) inside.push("");
        this.i--;
        hasGap ||= !ITEM.test(lines[next].trimStart());
      } else if (belongs(line)) {
        inside.push(line.slice(Math.min(width, indentOf(line))));
      } else if (ITEM.test(line) || interrupts(line) || isBlank(inside.at(-1))) {
        break;
      } else {
        inside.push(line.trimStart());
      }
    }
    return { inside, hasGap, ends: false };
  }

  itemTree(inside, isLoose) {
    const task = /^\[([ xX])\] /.exec(inside[0]);
    if (task) inside[0] = inside[0].slice(4);
    const found = blocks(inside, this.depth + 1);
    const children = isLoose ? found : found.flatMap(tree => (tree.name === "p" ? tree.children : [tree]));
    if (!task) return element("li", {}, joined(children));
    const mark = task[1] === " " ? "☐ " : "☑ ", [text] = children;
    const marked = text?.name === "p" ? [{ ...text, children: joined([mark, ...text.children]) }] : [mark, ...children.slice(0, 1)];
    return element("li", { class: "task" }, joined([...marked, ...children.slice(1)]));
  }

  table() {
    const { lines } = this, head = cells(lines[this.i]);
    const sides = cells(lines[this.i + 1]).map(mark => {
      const [left, right] = [mark.trim().startsWith(":"), mark.trim().endsWith(":")];
      return left && right ? "center" : right ? "right" : "";
    });
    const cell = (name, text, side) => element(name, side ? { class: side } : {}, inline(text));
    const row = (name, line) => element("tr", {}, head.map((_, n) => cell(name, line[n] ?? "", sides[n])));
    const rows = [];
    for (this.i += 2; this.i < lines.length && lines[this.i].includes("|") && !interrupts(lines[this.i]); this.i++) {
      rows.push(row("td", cells(lines[this.i])));
    }
    const table = element("table", {}, [element("thead", {}, [row("th", head)]), element("tbody", {}, rows)]);
    return element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, [table]);
  }

  // As it was written, where it ends.
  formula(line) {
    const { lines } = this, end = line.trimStart().startsWith("$$") ? "$$" : "\\]";
    const from = indentOf(line) + 2, last = Math.min(lines.length, this.i + MAX_FORMULA_LINES);
    for (let i = this.i; i < last; i++) {
      const at = lines[i].indexOf(end, i === this.i ? from : 0);
      if (at < 0) continue;
      if (!isBlank(lines[i].slice(at + 2))) return null;
      const all = lines.slice(this.i, i + 1);
      all[all.length - 1] = lines[i].slice(0, at);
      all[0] = all[0].slice(from);
      this.i = i + 1;
      const attributes = { class: "math", tabindex: "0", role: "group", "aria-label": "Formula" };
      return element("div", attributes, [all.join("\n").trim()]);
    }
    return null;
  }

  paragraph() {
    const { lines } = this, text = [];
    for (; this.i < lines.length; this.i++) {
      const line = lines[this.i];
      const underline = text.length > 0 && UNDERLINE.exec(line);
      if (underline) {
        this.i++;
        return element(underline[1][0] === "=" ? "h3" : "h4", {}, inline(text.join("\n")));
      }
      if (isBlank(line) || (text.length > 0 && (interrupts(line) || isTable(lines, this.i)))) break;
      text.push(line);
    }
    return element("p", {}, inline(text.join("\n")));
  }
}

function blocks(lines, depth) {
  return new Blocks(lines, depth).run().map(({ tree }) => tree);
}

// All of a text.
export function parse(text) {
  return blocks(text.split("\n").map(untabbed), 0);
}

// A text in an element of the document, which shows nothing else.
export class Shown {
  constructor(node) {
    this.node = node;
    this.text = "";
    this.trees = [];
    // The first block that may still change, and where it begins.
    this.open = 0;
    this.start = 0;
  }

  // What comes behind a block may change it (a list goes on, a line becomes the head of a table), but none before it;
  // except that a line which is not complete may turn out to be part of the block before it (`2`, and then `2. item`).
  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.open = this.start = 0;
    const lines = text.slice(this.start).split("\n");
    const found = new Blocks(lines.map(untabbed), 0).run();
    const trees = [...this.trees.slice(0, this.open), ...found.map(({ tree }) => tree)];
    this.patch(this.open, trees);
    this.trees = trees;
    this.text = text;
    const isLineOnly = found.length > 1 && found.at(-1).line === lines.length - 1;
    const first = Math.max(0, found.length - (isLineOnly ? 2 : 1));
    this.open += first;
    for (const line of lines.slice(0, found[first]?.line ?? 0)) this.start += line.length + 1;
  }

  patch(n, trees) {
    const { node } = this;
    let child = node.childNodes[n];
    for (let i = n; i < Math.min(this.trees.length, trees.length); i++) {
      const next = child.nextSibling;
      patch({ firstChild: child }, [this.trees[i]], [trees[i]]);
      child = next;
    }
    for (const tree of trees.slice(this.trees.length)) node.append(build(tree));
    while (node.childNodes.length > trees.length) node.lastChild.remove();
  }
}
