// Light, dark, or as the system says; the only thing this page keeps beyond the session.

import { h } from "./dom.js";
import { tell } from "./live.js";

const KEY = "wharfinger.theme";
const CHOICES = ["auto", "light", "dark"];

const chosen = () => (CHOICES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto");

export function applyTheme() {
  document.documentElement.dataset.theme = chosen();
}

export function themeSwitch() {
  const choose = (event) => {
    localStorage.setItem(KEY, event.target.value);
    applyTheme();
    tell();
  };
  return h("label", { class: "picker" }, h("span", { class: "visually-hidden" }, "Theme"),
    h("select", { id: "theme", onchange: choose }, CHOICES.map((name) => h("option", { value: name, selected: name === chosen() }, `${name[0].toUpperCase()}${name.slice(1)}`))));
}
