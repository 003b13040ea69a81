// Elements as plain values, and the way from them to the document.
//
// A tree is a text, or `{name, attributes, children}`. All that the page shows of what a model or a person wrote goes
// through `build`, which knows elements, attributes from our own code, and texts: nothing is ever parsed as HTML.

export function element(name, attributes = {}, children = []) {
  return { name, attributes, children };
}

// Neighbouring texts as one, without empty ones: so that a list of trees has a node in the document for each.
export function joined(trees) {
  const all = [];
  for (const tree of trees) {
    if (tree === "") continue;
    if (typeof tree === "string" && typeof all.at(-1) === "string") all[all.length - 1] += tree;
    else all.push(tree);
  }
  return all;
}

export function build(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const node = document.createElement(tree.name);
  for (const [name, value] of Object.entries(tree.attributes)) node.setAttribute(name, value);
  for (const child of tree.children) node.append(build(child));
  return node;
}

// Makes the children of `parent`, which were built from `before`, those of `after`, and touches only what differs: a
// selection in a text that grows survives.
export function patch(parent, before, after) {
  let node = parent.firstChild;
  for (let i = 0; i < after.length; i++) {
    const old = before[i], now = after[i];
    if (i >= before.length) {
      parent.append(build(now));
      continue;
    }
    const next = node.nextSibling;
    if (typeof old === "string" && typeof now === "string") {
      if (now !== old) {
        if (now.startsWith(old)) node.appendData(now.slice(old.length));
        else node.data = now;
      }
    } else if (old.name && old.name === now.name && alike(old.attributes, now.attributes)) {
      patch(node, old.children, now.children);
    } else {
      node.replaceWith(build(now));
    }
    node = next;
  }
  for (let i = after.length; i < before.length; i++) {
    const next = node.nextSibling;
    node.remove();
    node = next;
  }
}

function alike(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every(name => one[name] === other[name]);
}
