// Builds elements and brings a living tree up to date with a fresh one, so that focus, scrolling and what a screen
// reader has in hand survive every update. Text is only ever text here: names of files are hostile.

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
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morphAttributes(old, fresh) {
  // What its reader has opened stays open, and what was closed stays closed.
  const isTheirs = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) === value || isTheirs(name)) continue;
    // The policy stops what comes as an attribute, and lets pass what is set as a property.
    if (name === "style") old.style.cssText = fresh.style.cssText;
    else old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isTheirs(name)) old.removeAttribute(name);
  }
  for (const handler of HANDLERS) if (old[handler] !== fresh[handler]) old[handler] = fresh[handler];
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  morphAttributes(old, fresh);
  // What is typed or chosen belongs to who typed it.
  if (!["INPUT", "TEXTAREA"].includes(old.nodeName)) morphChildren(old, [...fresh.childNodes]);
}

/** Makes the children of `parent` like the fresh ones, keeping every node that stands for the same thing. */
export function morphChildren(parent, fresh) {
  const keyed = new Map();
  const wanted = new Set(fresh.map(keyOf));
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (!key) continue;
    // What goes away goes first: then what stays need not be moved past it, and a moved node loses the focus.
    if (wanted.has(key)) keyed.set(key, child);
    else child.remove();
  }
  let here = parent.firstChild;
  for (const node of fresh) {
    const key = keyOf(node);
    const same = key ? keyed.get(key) : here && !keyOf(here) ? here : null;
    if (same && isAlike(same, node)) {
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

/** As `morphChildren`; what was moved keeps the focus, and where the focused thing goes away, its section's heading gets
 *  it and not nobody. */
export function show(parent, fresh) {
  const active = parent.contains(document.activeElement) ? document.activeElement : null;
  const chain = [];
  for (let node = active?.parentElement; node; node = node.parentElement) chain.push(node);
  morphChildren(parent, fresh.flat(Infinity).filter((node) => node instanceof Node));
  if (!active) return;
  if (active.isConnected) {
    if (document.activeElement === document.body) active.focus({ preventScroll: true });
    return;
  }
  const home = chain.filter((node) => node.isConnected).map((node) => node.querySelector("h1, h2, h3")).find(Boolean);
  if (!home) return;
  home.setAttribute("tabindex", "-1");
  home.focus({ preventScroll: true });
}
