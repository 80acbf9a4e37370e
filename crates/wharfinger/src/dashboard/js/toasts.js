// Messages after an action. Screen readers read them out. Errors stay until the user closes
// them or newer errors take their place.

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SHOWN_MS = 9_000;
const TOASTS_MAX = 5;

let count = 0;

export function toast(kind, text, detail = "") {
  const list = document.getElementById("toasts");
  const close = () => item.remove();
  count += 1;
  const item = h("div", { class: `toast ${kind}`, "data-number": count, role: kind === "bad" ? "alert" : "status" },
    icon(kind === "bad" ? "warn" : "check"),
    h("div", {}, h("p", {}, text), detail ? h("p", { class: "muted" }, detail) : null),
    h("button", { class: "quiet", "aria-label": "Close this message", onclick: close }, icon("cross")));
  list.append(item);
  if (list.children.length > TOASTS_MAX) {
    const earlier = [...list.children].slice(0, -1);
    (earlier.find((old) => old.classList.contains("ok")) ?? earlier[0]).remove();
  }
  if (kind === "bad") return;
  let timer = setTimeout(close, SHOWN_MS);
  for (const stop of ["mouseenter", "focusin"]) item.addEventListener(stop, () => clearTimeout(timer));
  for (const go of ["mouseleave", "focusout"]) item.addEventListener(go, () => (timer = setTimeout(close, SHOWN_MS)));
}

let last = "";

/** Lets screen readers read the text out, unless it is the same as the last one. */
export function announce(text) {
  if (text === last) return;
  last = text;
  document.getElementById("announcements").textContent = text;
}
