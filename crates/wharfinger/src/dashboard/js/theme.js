// Light, dark, or as the system says; the only thing this page keeps beyond the session.

import { h } from "./dom.js";
import { tell } from "./live.js";

const KEY = "wharfinger.theme";
const CHOICES = ["auto", "light", "dark"];

let wished = "";

/** Where a browser keeps nothing for pages, the choice lasts as long as the page. */
function chosen() {
  try {
    wished ||= localStorage.getItem(KEY);
  } catch {
    // It is then as the system says.
  }
  return CHOICES.includes(wished) ? wished : "auto";
}

export function applyTheme() {
  document.documentElement.dataset.theme = chosen();
}

export function themeSwitch() {
  const choose = (event) => {
    wished = event.target.value;
    try {
      localStorage.setItem(KEY, wished);
    } catch {
      // It lasts as long as the page.
    }
    applyTheme();
    tell();
  };
  return h("label", { class: "picker" }, h("span", { class: "visually-hidden" }, "Theme"),
    h("select", { id: "theme", onchange: choose }, CHOICES.map((name) => h("option", { value: name, selected: name === chosen() }, `${name[0].toUpperCase()}${name.slice(1)}`))));
}
