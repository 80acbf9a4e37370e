// Creates elements, and updates the shown elements in place, so that focus, scrolling and the position of a screen reader
// survive. Strings become text nodes and attributes, never markup: a file name may contain an attack.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "ondragenter", "ondragover", "ondragleave", "ondrop", "ontoggle"];

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "style") for (const [rule, given] of Object.entries(value)) node.style.setProperty(rule, given);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child);
    else if (child instanceof Node) node.append(child);
    else if (child !== undefined && child !== null && child !== false) node.append(String(child));
  }
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const isSameNode = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morphAttributes(old, fresh) {
  // A <details> that the reader opened or closed stays so.
  const isReaders = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) === value || isReaders(name)) continue;
    // The content security policy blocks a style attribute, but not the style property.
    if (name === "style") old.style.cssText = fresh.style.cssText;
    else old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isReaders(name)) old.removeAttribute(name);
  }
  for (const handler of HANDLERS) if (old[handler] !== fresh[handler]) old[handler] = fresh[handler];
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  morphAttributes(old, fresh);
  // The typed text of a field stays.
  if (!["INPUT", "TEXTAREA"].includes(old.nodeName)) morphChildren(old, [...fresh.childNodes]);
}

/** Updates the children of `parent` to the fresh ones. Nodes with the same `data-key` are updated in place. */
export function morphChildren(parent, fresh) {
  const keyed = new Map();
  const wanted = new Set(fresh.map(keyOf));
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (!key) continue;
    // Old nodes are removed first, so that fewer nodes have to move: a node that moves loses the focus.
    if (wanted.has(key)) keyed.set(key, child);
    else child.remove();
  }
  let here = parent.firstChild;
  for (const node of fresh) {
    const key = keyOf(node);
    const same = key ? keyed.get(key) : here && !keyOf(here) ? here : null;
    if (same && isSameNode(same, node)) {
      if (same === here) here = here.nextSibling;
      else parent.insertBefore(same, here);
      keyed.delete(key);
      morph(same, node);
    } else {
      parent.insertBefore(node, here);
      if (here && !keyOf(here) && !key) {
        const next = here.nextSibling;
        here.remove();
        here = next;
      }
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

/** Like `morphChildren`, and keeps the focus: on the focused element or, if that is removed, on the heading of its section. */
export function show(parent, fresh) {
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const ancestors = [];
  for (let node = active?.parentElement; node; node = node.parentElement) ancestors.push(node);
  morphChildren(parent, fresh.flat(Infinity).filter((node) => node instanceof Node));
  if (!active) return;
  if (active.isConnected) {
    if (document.activeElement === document.body) active.focus({ preventScroll: true });
    return;
  }
  const heading = ancestors.filter((node) => node.isConnected).map((node) => node.querySelector("h1, h2, h3")).find(Boolean);
  if (!heading) return;
  heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
}
