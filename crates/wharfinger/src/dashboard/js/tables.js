// Tables, titled sections, placeholders and meters. A table becomes a list of cards on a phone; explicit roles keep it a
// table for screen readers.

import { h } from "./dom.js";
import { live } from "./live.js";

/** `columns`: [{ name, cell(row), isNumber?, isHead? }]; `keyOf(row)` identifies a row. */
export function table(caption, columns, rows, keyOf) {
  const alignment = (column) => (column.isNumber ? "number" : null);
  return h("table", { role: "table", class: "cards" },
    h("caption", { class: "visually-hidden" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => h("th", { role: "columnheader", scope: "col", class: alignment(column) }, column.name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row", "data-key": keyOf(row) }, columns.map((column) => {
      const isHead = column.isHead === true;
      return h(isHead ? "th" : "td", { role: isHead ? "rowheader" : "cell", scope: isHead ? "row" : null, class: alignment(column), "data-label": column.name }, column.cell(row));
    })))));
}

/** A part of a page with a title. `tools` are shown to the right of the title. */
export function section(key, title, content, { tools = null, hint = "", count = null, wide = false } = {}) {
  return h("section", { class: wide ? "card wide" : "card", "data-key": key, "aria-labelledby": `h-${key}` },
    h("div", { class: "card-head" },
      h("h2", { id: `h-${key}` }, title, count === null ? null : h("span", { class: "count" }, count)),
      tools && h("div", { class: "tools" }, tools)),
    hint ? h("p", { class: "hint" }, hint) : null,
    content);
}

/** A text in place of an empty list. */
export const placeholder = (text) => h("p", { class: "placeholder" }, text);
/** A text in place of a list that is loading or cannot be loaded: `name` as in `live`. */
export const loading = (name) => (live.errors[name] ? h("p", { class: "error" }, live.errors[name]) : placeholder("Loading…"));

/** A bar that shows `value` as a share of `max`. */
export function meter(label, value, max, kind = "") {
  const share = max > 0 ? Math.min(100, (value / max) * 100) : value > 0 ? 100 : 0;
  return h("div", { class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuenow": Math.round(share), "aria-valuemin": 0, "aria-valuemax": 100 },
    value > 0 && h("span", { style: { width: `${share}%` } }));
}
