// The page's Markdown under node, against documents written by hand: `node markdown.mjs`. A line for each test:
// `ok      NAME` or `FAILED  NAME`. Fails if anything failed.

import { Shown, parse } from "../../crates/serve/src/page/markdown.mjs";
import { patch } from "../../crates/serve/src/page/tree.mjs";

// ---- as much of a document as the page uses; a text that is set as HTML would be an error ----

class Node {
  constructor() {
    this.childNodes = [];
    this.parent = null;
  }
  get firstChild() {
    return this.childNodes[0] ?? null;
  }
  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }
  get nextSibling() {
    return this.parent.childNodes[this.parent.childNodes.indexOf(this) + 1] ?? null;
  }
  append(node) {
    node.parent = this;
    this.childNodes.push(node);
  }
  remove() {
    this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
  }
  replaceWith(node) {
    node.parent = this.parent;
    this.parent.childNodes[this.parent.childNodes.indexOf(this)] = node;
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }
  appendData(data) {
    this.data += data;
  }
  get html() {
    return this.data.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }
}

class Element extends Node {
  constructor(name) {
    super();
    this.name = name;
    this.attributes = {};
  }
  setAttribute(name, value) {
    if (/^on|^style$|^src/i.test(name)) throw new Error(`the attribute ${name}`);
    this.attributes[name] = String(value);
  }
  set innerHTML(_) {
    throw new Error("a text became HTML");
  }
  get html() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${value.replace(/"/g, "&quot;")}"`);
    const inside = this.childNodes.map(node => node.html).join("");
    return ["br", "hr"].includes(this.name) ? `<${this.name}>` : `<${this.name}${attributes.join("")}>${inside}</${this.name}>`;
  }
}

globalThis.document = { createElement: name => new Element(name), createTextNode: data => new Text(data) };

// A document of a text. What is the same everywhere is written short: links, boxes that are scrolled, code.
function shown(text) {
  const root = new Element("root");
  new Shown(root).update(text);
  return short(root);
}

function short(root) {
  const inside = root.childNodes.map(node => node.html).join("");
  return inside
    .replace(/ rel="noopener noreferrer" target="_blank"/g, "")
    .replace(/<div class="code"><div class="bar"><span>([^<]*)<\/span><button type="button" class="copy">Copy<\/button><\/div><pre tabindex="0" role="group" aria-label="[^"]*"><code>/g, "<pre $1>")
    .replace(/<\/span><span class="line">/g, "\n")
    .replace(/(<pre [^>]*>)<span class="line">/g, "$1")
    .replace(/<\/span><\/code><\/pre><\/div>/g, "</pre>")
    .replace(/\n<br>(?=\n)/g, "\n")
    .replace(/ tabindex="0" role="group" aria-label="(Table|Formula)"/g, "");
}

// ---- the tests ----

let failed = 0;

function test(name, run) {
  let why = "";
  try {
    why = run() ?? "";
  } catch (error) {
    why = error.stack;
  }
  if (why) failed++;
  console.log(why ? `FAILED  Markdown, ${name}: ${why}` : `ok      Markdown, ${name}`);
}

function differs(got, expected) {
  return got === expected ? "" : `\n  expected ${expected}\n  found    ${got}`;
}

const CASES = [
  ["a paragraph keeps its lines", "one\ntwo  \nthree\\\nfour\n\nfive", "<p>one<br>two<br>three<br>four</p><p>five</p>"],
  ["emphasis", "*a* **b** ***c*** _d_ __e__ ~~f~~ ~g~", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del> ~g~</p>"],
  ["emphasis in emphasis", "**a *b* c**, *a **b** c*", "<p><strong>a <em>b</em> c</strong>, <em>a <strong>b</strong> c</em></p>"],
  ["no emphasis", "2 * 3 * 4, a_b_c, **open, \\*not\\*", "<p>2 * 3 * 4, a_b_c, **open, *not*</p>"],
  ["crossed marks", "*a **b* c**", "<p><em>a <em><em>b</em> c</em></em></p>"],
  ["code", "`a*b*` `` x`y `` `open", "<p><code>a*b*</code> <code>x`y</code> `open</p>"],
  ["headings are below the page's", "# A\n## B ##\n### C\n#### D\n###### F\n#none", "<h3>A</h3><h4>B</h4><h5>C</h5><h6>D</h6><h6>F</h6><p>#none</p>"],
  ["underlined headings, rules", "Title\n===\nPart\n---\n\n---\n* * *", "<h3>Title</h3><h4>Part</h4><hr><hr>"],
  ["links", '[a *b*](https://x.example/p_(q) "title") <https://y.example> <mailto:a@b.example>', '<p><a href="https://x.example/p_(q)">a <em>b</em></a> <a href="https://y.example">https://y.example</a> <a href="mailto:a@b.example">mailto:a@b.example</a></p>'],
  ["addresses in a text", "see https://x.example/a_(b)_c?d=1&e=2. (https://y.example/)", '<p>see <a href="https://x.example/a_(b)_c?d=1&e=2">https://x.example/a_(b)_c?d=1&amp;e=2</a>. (<a href="https://y.example/">https://y.example/</a>)</p>'],
  ["an address in a link is one link", "[https://x.example](https://y.example)", '<p><a href="https://y.example">https://x.example</a></p>'],
  ["a picture is a link, and not fetched", "![a cat](https://x.example/cat.png)", '<p><a href="https://x.example/cat.png">a cat</a></p>'],
  ["every way to run a script stays text", "[a](javascript:alert(1)) [b](JaVaScRiPt:x) [c](data:text/html,x) [d](vbscript:x) [e](&#106;avascript:x) [f]( java\nscript:x) <javascript:x> [g](//x.example) [h](file:///etc/passwd)", "<p>[a](javascript:alert(1)) [b](JaVaScRiPt:x) [c](data:text/html,x) [d](vbscript:x) [e](javascript:x) [f]( java<br>script:x) &lt;javascript:x&gt; [g](//x.example) [h](file:///etc/passwd)</p>"],
  ["HTML is text", '<script>alert(1)</script><img src=x onerror="y"> <b>b</b>\n\n<div onclick="x">\n\n<!-- c -->', '<p>&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror="y"&gt; &lt;b&gt;b&lt;/b&gt;</p><p>&lt;div onclick="x"&gt;</p><p>&lt;!-- c --&gt;</p>'],
  ["a quote ends no attribute", '[a](https://x.example/"onmouseover="alert) https://x.example/"onclick="y', '<p><a href="https://x.example/&quot;onmouseover=&quot;alert">a</a> <a href="https://x.example/">https://x.example/</a>"onclick="y</p>'],
  ["entities", "&lt;b&gt; &amp; &#65; &#x1F642; &nbsp;. &unknown; &#0;", "<p>&lt;b&gt; &amp; A 🙂 \u00a0. &amp;unknown; \ufffd</p>"],
  ["a break in a cell", "| a |\n|---|\n| b<br>c<BR/>d |", "<div class=\"table\"><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>b<br>c<br>d</td></tr></tbody></table></div>"],
  ["code between fences", "```py\nx = 1 # *no*\n```\nafter\n~~~\n```\n~~~", '<pre py>x = <span class="number">1</span> <span class="comment"># *no*</span></pre><p>after</p><pre text>```</pre>'],
  ["a fence that is never closed", "before\n````rs\n```\nlet a", '<p>before</p><pre rs>```\n<span class="keyword">let</span> a</pre>'],
  ["a language is no attribute", '```x" onclick="y\nz\n```', '<pre x">z</pre>'],
  ["indented code", "a\n\n    b\n\n      c\n\nd", "<p>a</p><pre text>b\n\n  c</pre><p>d</p>"],
  ["lists", "- a\n- b\n\n3. c\n4. d\n\n* e\n+ f", '<ul><li>a</li><li>b</li></ul><ol start="3"><li>c</li><li>d</li></ol><ul><li>e</li></ul><ul><li>f</li></ul>'],
  ["lists in lists", "1. a\n   - b\n     - c\n   - d\n2. e", "<ol><li>a<ul><li>b<ul><li>c</li></ul></li><li>d</li></ul></li><li>e</li></ol>"],
  ["lists in lists as models indent them", "1. a\n  - b\n  - c\n2. d\n\t- e", "<ol><li>a<ul><li>b</li><li>c</li></ul></li><li>d<ul><li>e</li></ul></li></ol>"],
  ["a loose list", "- a\n\n- b\n\n  more\n\nafter", "<ul><li><p>a</p></li><li><p>b</p><p>more</p></li></ul><p>after</p>"],
  ["tasks", "- [ ] a\n- [x] b\n\n1. [x] c\n\n1. d", '<ul><li class="task">☐ a</li><li class="task">☑ b</li></ul><ol><li class="task"><p>☑ c</p></li><li><p>d</p></li></ol>'],
  ["code in a list", "1. a\n   ```\n   b\n   ```\n2. c", "<ol><li>a<pre text>b</pre></li><li>c</li></ol>"],
  ["a line of a paragraph is no list", "It was in\n1984. A year\n- and this is one", "<p>It was in<br>1984. A year</p><ul><li>and this is one</li></ul>"],
  ["quotes", "> a\nb\n> > c\n>\n> - d\n\ne", "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote><ul><li>d</li></ul></blockquote><p>e</p>"],
  ["a table behind a line", "As follows:\n| a | b | c |\n|:--|:-:|--:|\n| 1 | **2** | `3` |\n| x \\| y | z |\nafter", '<p>As follows:</p><div class="table"><table><thead><tr><th>a</th><th class="center">b</th><th class="right">c</th></tr></thead><tbody><tr><td>1</td><td class="center"><strong>2</strong></td><td class="right"><code>3</code></td></tr><tr><td>x | y</td><td class="center">z</td><td class="right"></td></tr></tbody></table></div><p>after</p>'],
  ["no table", "| a | b |\n|---|\n\na | b\nc", "<p>| a | b |<br>|---|</p><p>a | b<br>c</p>"],
  ["formulas are shown as they are", "\\(a_1 * b_1 * c\\) and\n\n\\[\nx_i * y_i\n\\]\n\n$$z_1$$", '<p><span class="math">a_1 * b_1 * c</span> and</p><div class="math">x_i * y_i</div><div class="math">z_1</div>'],
  ["lines end as on any system", "a\r\nb\r\n\r\n- c\r\n", "<p>a<br>b</p><ul><li>c</li></ul>"],
  ["nothing", "", ""],
  ["blank lines", "\n \n\t\n", ""],
];
for (const [name, text, expected] of CASES) test(name, () => differs(shown(text), expected));

// Whole texts, shown piece by piece, are what they would be at once; and blocks that are complete are left alone.
test("a text that comes in pieces is what comes at once", () => {
  const text = CASES.map(([, one]) => one).filter(one => !one.includes("````")).join("\n\n");
  const expected = shown(text);
  for (const step of [1, 2, 3, 7, 50]) {
    const root = new Element("root"), view = new Shown(root);
    for (let end = 0; end < text.length; end += step) view.update(text.slice(0, end));
    view.update(text);
    const wrong = differs(short(root), expected);
    if (wrong) return `in steps of ${step}: ${wrong}`;
  }
  return "";
});

test("what is complete is not touched again", () => {
  const root = new Element("root"), view = new Shown(root);
  const text = "# A\n\nfirst\n\n```js\nlet a;\n```\n\n| a |\n|---|\n| b |\n\nlast";
  view.update(text);
  const nodes = [...root.childNodes], last = nodes.at(-1).firstChild;
  for (let n = 1; n <= 200; n++) view.update(`${text} word`.padEnd(text.length + 5 * n, " word"));
  if (root.childNodes.length !== nodes.length) return `${root.childNodes.length} blocks`;
  if (root.childNodes.some((node, i) => node !== nodes[i])) return "a block was made anew";
  return last === root.lastChild.firstChild && last.data.length > 900 ? "" : "the text that grows was made anew";
});

test("another text replaces all of it", () => {
  const root = new Element("root"), view = new Shown(root);
  view.update("# A\n\n- b\n- c\n\nd");
  view.update("x");
  return differs(short(root), "<p>x</p>");
});

test("what differs is patched to what is built", () => {
  const texts = CASES.map(([, text]) => text);
  for (const before of texts) {
    for (const after of texts) {
      const root = new Element("root"), built = parse(before);
      new Shown(root).update(before);
      patch(root, built, parse(after));
      const wrong = differs(short(root), shown(after));
      if (wrong) return wrong;
    }
  }
  return "";
});

// What would take for ever, or overflow the stack, if anything looked again at what it has seen. Each comes at its
// whole length, and at one below which paragraphs are read.
const HOSTILE = [
  "x", "*a ", "**a*", "[", "[](", "](<", '[a](b "', "`", "\\(", "_a*b~~", "*", "> ", ">", "- ", "1. ", "# ", "#", "|", "a\n", "<br", "&#", "http://",
  "```\n", "~~~\n\n", "- a\n\n", "> a\n", "\\[\n", "$$\n", "| a |\n|---|\n", "* * ", "=\n", "    a\n\n", "![", "\t", "<http://", "a `b` ", "((",
];
test("a megabyte of anything is shown whole", () => {
  for (const piece of HOSTILE) {
    for (const length of [1_000_000, 40_000]) {
      const text = piece.repeat(Math.floor((length >> (piece.includes("\n") ? 3 : 0)) / piece.length)) + "\n\nthe end";
      const root = new Element("root");
      new Shown(root).update(text);
      if (!/the end/.test(textOf(root.lastChild))) return `${JSON.stringify(piece)} swallowed what is behind it`;
    }
  }
  return "";
});

function textOf(node) {
  return node.data ?? node.childNodes.map(textOf).join("");
}

process.exit(failed ? 1 : 0);
