// The icons of the page, and the badge of a status: it has a shape and a word, because some people cannot see colours.

import { h, s } from "./dom.js";
import { kindOfStatus, statusMeaning } from "./words.js";

const PATHS = {
  check: ["M4 8.5l2.7 2.700L12 5.500"],
  cross: ["M4.500 4.500l7 7M11.500 4.500l-7 7"],
  clock: ["M8 4.500V8l2.300 1.500", "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2"],
  gear: ["M8 2.200v2M8 11.800v2M2.200 8h2M11.800 8h2M3.900 3.900l1.400 1.400M10.700 10.700l1.400 1.400M3.900 12.100l1.400-1.400M10.700 5.300l1.400-1.400"],
  warn: ["M8 2.300L14.200 13H1.800z", "M8 6.500v3M8 11.200v.1"],
  upload: ["M8 10.500V3M4.800 5.800L8 2.700l3.200 3.100M2.800 10.800v2.400h10.400v-2.400"],
};

export const icon = (name) =>
  s("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" },
    PATHS[name].map((d) => s("path", { d })));

/** The logo is drawn and not fetched: the page must also work without a connection. */
export const brandMark = (size) =>
  s("svg", { class: "mark", viewBox: "0 0 32 32", width: size, height: size, "aria-hidden": "true", focusable: "false" },
    s("rect", { width: 32, height: 32, rx: 8 }), s("circle", { cx: 16, cy: 8.4, r: 2.6 }),
    s("path", { d: "M16 11v14.2M11.4 15h9.2M6.6 18.4c.5 4.4 4.4 7.4 9.4 7.4s8.9-3 9.4-7.4M6.6 18.4L5 21.2M6.6 18.4l2.9 1.8M25.4 18.4l1.600 2.800M25.400 18.400l-2.900 1.800" }));

const SHAPES = { ok: "check", bad: "cross", wait: "clock", work: "gear" };

export function badge(status) {
  const kind = kindOfStatus(status);
  return h("span", { class: `badge ${kind}`, title: statusMeaning(status) }, icon(SHAPES[kind]), status);
}
