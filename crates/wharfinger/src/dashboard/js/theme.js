// The theme: light, dark, or that of the system. The choice is stored in the browser.

import { h } from "./dom.js";
import { emitChange } from "./live.js";

const KEY = "wharfinger.theme";
const CHOICES = ["auto", "light", "dark"];

let choice = "";

/** A browser may forbid storage: the choice then lasts until the page is closed. */
function chosen() {
  try {
    choice ||= localStorage.getItem(KEY);
  } catch {
    // Without storage the theme of the system is used.
  }
  return CHOICES.includes(choice) ? choice : "auto";
}

export function applyTheme() {
  document.documentElement.dataset.theme = chosen();
}

export function themeSwitch() {
  const choose = (event) => {
    choice = event.target.value;
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // The choice lasts until the page is closed.
    }
    applyTheme();
    emitChange();
  };
  return h("label", { class: "picker" }, h("span", { class: "visually-hidden" }, "Theme"),
    h("select", { id: "theme", onchange: choose }, CHOICES.map((name) => h("option", { value: name, selected: name === chosen() }, `${name[0].toUpperCase()}${name.slice(1)}`))));
}
