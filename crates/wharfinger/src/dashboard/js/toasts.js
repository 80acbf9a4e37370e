// Says what came of an action: long enough to be read, aloud for who listens, and errors until they are put away.

import { h } from "./dom.js";
import { icon } from "./icons.js";

const STAYS_MS = 9_000;
const AT_ONCE_MAX = 5;

let count = 0;

export function toast(kind, text, detail = "") {
  const place = document.getElementById("toasts");
  const close = () => item.remove();
  count += 1;
  const item = h("div", { class: `toast ${kind}`, "data-number": count, role: kind === "bad" ? "alert" : "status" },
    icon(kind === "bad" ? "warn" : "check"),
    h("div", {}, h("p", {}, text), detail ? h("p", { class: "muted" }, detail) : null),
    h("button", { class: "quiet", "aria-label": "Put this message away", onclick: close }, icon("cross")));
  place.append(item);
  if (place.children.length > AT_ONCE_MAX) {
    const earlier = [...place.children].slice(0, -1);
    (earlier.find((old) => old.classList.contains("ok")) ?? earlier[0]).remove();
  }
  if (kind === "bad") return;
  let timer = setTimeout(close, STAYS_MS);
  for (const stop of ["mouseenter", "focusin"]) item.addEventListener(stop, () => clearTimeout(timer));
  for (const go of ["mouseleave", "focusout"]) item.addEventListener(go, () => (timer = setTimeout(close, STAYS_MS)));
}

let last = "";

/** For screen readers alone, and only when there is something new to say. */
export function say(text) {
  if (text === last) return;
  last = text;
  document.getElementById("told").textContent = text;
}
