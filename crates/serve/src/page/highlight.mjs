// Colours for code: comments, strings, numbers and the words of its language, found without knowing its grammar.

import { element, joined } from "./tree.mjs";

// Longer code has no colours.
const MAX_LENGTH = 100_000;

const words = text => new Set(text.split(" "));
const C =
  "alignas auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern " +
  "false final float for friend goto if inline int long mutable namespace new noexcept nullptr operator override private " +
  "protected public register return short signed sizeof static struct switch template this throw true try typedef typename " +
  "union unsigned using virtual void volatile while __device__ __global__ __shared__";
const SCRIPT =
  "abstract any as async await boolean break case catch class const continue debugger declare default delete do else enum " +
  "export extends false finally for from function get if implements import in instanceof interface let new null number of " +
  "private protected public readonly return set static string super switch this throw true try type typeof undefined var " +
  "void while yield";
const RUST =
  "as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i16 i32 i64 i8 if impl in " +
  "isize let loop match mod move mut pub ref return self Self static str struct super trait true type u16 u32 u64 u8 unsafe " +
  "use usize where while";
const GO =
  "bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto if import int " +
  "int64 interface map nil package range return rune select string struct switch true type uint8 var";
const JVM =
  "abstract as boolean break byte case catch char class const continue data default do double else enum extends final finally " +
  "float for fun if implements import in int interface internal is long namespace new null object open override package " +
  "private protected public return sealed short static string super switch this throw throws true false try using val var " +
  "void when while";
const PYTHON =
  "False None True and as assert async await break class continue def del elif else except finally for from global if import " +
  "in is lambda match nonlocal not or pass raise return self try while with yield";
const RUBY =
  "begin break case class def do else elsif end ensure false for function if in local module next nil not or and repeat require " +
  "rescue return self super then true unless until when while yield";
const SHELL =
  "case cd do done echo elif else esac exit export fi for function if in local read return set shift source sudo then unset " +
  "until while";
const SQL =
  "add all alter and as asc begin between by case commit create cross default delete desc distinct drop else end exists foreign " +
  "from full group having in index inner insert into is join key left like limit not null offset on or order outer primary " +
  "references right select set table then union unique update values view when where with";

const SLASH = String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`(?<![^\s;])#.*`;
const DASHES = String.raw`--.*`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;
const TICKED = "`(?:[^`\\\\]|\\\\[^])*`?";
// A quote may begin a lifetime.
const RUST_QUOTED = String.raw`"(?:[^"\\]|\\[^])*"?|'(?:[^'\\\n]|\\.)'`;

function language(comment, string, keywords, ignoresCase = false) {
  const source = `(${comment})|(${string})|(\\b(?:0[xX][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][-+]?\\d+)?)\\w*)|([A-Za-z_]\\w*)`;
  return { pattern: new RegExp(source, "g"), keywords: words(keywords), ignoresCase };
}

const LANGUAGES = [
  ["c h cpp c++ cc hpp cuda hip glsl hlsl", language(SLASH, QUOTED, C)],
  ["javascript js mjs jsx typescript ts tsx", language(SLASH, `${QUOTED}|${TICKED}`, SCRIPT)],
  ["rust rs", language(SLASH, RUST_QUOTED, RUST)],
  ["go golang", language(SLASH, `${QUOTED}|${TICKED}`, GO)],
  ["java kotlin kt scala swift csharp cs c# dart php", language(SLASH, `${TRIPLE}|${QUOTED}`, JVM)],
  ["python py python3", language(HASH, `${TRIPLE}|${QUOTED}`, PYTHON)],
  ["ruby rb", language(HASH, QUOTED, RUBY)],
  ["lua", language(DASHES, QUOTED, RUBY)],
  ["bash sh shell zsh console dockerfile makefile", language(HASH, QUOTED, SHELL)],
  ["toml yaml yml ini", language(HASH, QUOTED, "true false null yes no on off")],
  ["sql", language(`${DASHES}|\\/\\*[^]*?(?:\\*\\/|$)`, QUOTED, SQL, true)],
  ["json jsonc json5 jsonl", language(SLASH, QUOTED, "true false null")],
  ["html xml svg", language("<!--[^]*?(?:-->|$)", QUOTED, "")],
  ["css scss", language("\\/\\*[^]*?(?:\\*\\/|$)", QUOTED, "")],
];
const BY_NAME = new Map(LANGUAGES.flatMap(([names, found]) => names.split(" ").map(name => [name, found])));

// Trees that together have the text of the code.
export function highlighted(name, code) {
  const found = BY_NAME.get(name.toLowerCase());
  if (!found || code.length > MAX_LENGTH) return code ? [code] : [];
  const trees = [];
  let at = 0;
  for (const match of code.matchAll(found.pattern)) {
    const [text, comment, string, number] = match;
    const isKeyword = found.keywords.has(found.ignoresCase ? text.toLowerCase() : text);
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKeyword ? "keyword" : "";
    if (!kind) continue;
    trees.push(code.slice(at, match.index), element("span", { class: kind }, [text]));
    at = match.index + text.length;
  }
  trees.push(code.slice(at));
  return joined(trees);
}
