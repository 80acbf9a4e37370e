// A table that becomes a list of cards on a phone and stays a table for screen readers: hence the roles.

import { h } from "./dom.js";
import { live } from "./live.js";

/** `columns`: [{ name, cell(row), isNumber?, isHead? }]; `keyOf(row)` tells rows apart. */
export function table(caption, columns, rows, keyOf) {
  const side = (column) => (column.isNumber ? "number" : null);
  return h("table", { role: "table", class: "cards" },
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => h("th", { role: "columnheader", scope: "col", class: side(column) }, column.name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row", "data-key": keyOf(row) }, columns.map((column) => {
      const isHead = column.isHead === true;
      return h(isHead ? "th" : "td", { role: isHead ? "rowheader" : "cell", scope: isHead ? "row" : null, class: side(column), "data-label": column.name }, column.cell(row));
    })))));
}

/** A titled part of a page. `tools` stand at the right of the title. */
export function section(key, title, content, { tools = null, hint = "", count = null, wide = false } = {}) {
  return h("section", { class: wide ? "card wide" : "card", "data-key": key, "aria-labelledby": `h-${key}` },
    h("div", { class: "card-head" },
      h("h2", { id: `h-${key}` }, title, count === null ? null : h("span", { class: "count" }, count)),
      tools && h("div", { class: "tools" }, tools)),
    hint ? h("p", { class: "hint" }, hint) : null,
    content);
}

export const nothing = (text) => h("p", { class: "nothing" }, text);
/** In place of what is not there yet, or cannot be had: `name` as the lists are called. */
export const loading = (name) => (live.errors[name] ? h("p", { class: "wrong" }, live.errors[name]) : h("p", { class: "nothing" }, "Loading…"));

/** A bar for a share, with the share in words beside it. */
export function meter(label, value, max, kind = "") {
  const share = max > 0 ? Math.min(100, (value / max) * 100) : value > 0 ? 100 : 0;
  return h("div", { class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuenow": Math.round(share), "aria-valuemin": 0, "aria-valuemax": 100 },
    value > 0 && h("span", { style: { width: `${share}%` } }));
}
