// The files one may see, newest first, and the search in their text.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { badge } from "./icons.js";
import { live, ofTenant, tell } from "./live.js";
import { deleteFile } from "./mending.js";
import { loading, nothing, section, table } from "./tables.js";
import { bytes, number, time } from "./words.js";

const PAGE = 50;
const LOOK_MS_MIN = 1_000;

let list = null;
let next = null;
let error = "";
let isLoadingMore = false;
let found = null;
let seen = null;
let tenant = "";
let lookedAt = 0;
let timer = 0;

async function look() {
  timer = 0;
  lookedAt = Date.now();
  // Another tenant's files are another list.
  if (tenant !== live.tenant) [tenant, list, next] = [live.tenant, null, null];
  const isStale = () => tenant !== live.tenant;
  try {
    const answer = await get(`/api/v2/files?limit=${Math.min(1000, Math.max(PAGE, list?.length ?? 0))}${ofTenant("&")}`);
    if (isStale()) return;
    [list, next, error] = [answer.files, answer.nextCursor, ""];
  } catch (failed) {
    if (isStale()) return;
    error = failed.message;
  }
  tell();
}

/** Soon, and at most once a second. */
const lookSoon = () => (timer ||= setTimeout(look, Math.max(0, lookedAt + LOOK_MS_MIN - Date.now())));

async function more() {
  isLoadingMore = true;
  tell();
  const before = list;
  try {
    const answer = await get(`/api/v2/files?limit=${PAGE}&cursor=${encodeURIComponent(next)}${ofTenant("&")}`);
    // Whoever asked for it may be looking at another list by now, which will be as long as it has to be.
    if (list === before) [list, next] = [[...list, ...answer.files], answer.nextCursor];
  } catch (failed) {
    error = failed.message;
  }
  isLoadingMore = false;
  tell();
}

const search = async (event) => {
  event.preventDefault();
  const query = new FormData(event.target).get("query").trim();
  if (!query) return (found = null), tell();
  try {
    found = { query, hits: (await post("/api/v2/search", { query, limit: 10 })).hits };
  } catch (failed) {
    found = { query, hits: [], error: failed.message };
  }
  return tell();
};

function hits() {
  if (!found) return null;
  if (found.error) return h("p", { class: "wrong", role: "alert" }, found.error);
  if (!found.hits.length) return nothing(`No passage of your ready files is like “${found.query}”.`);
  return h("ol", { class: "hits" }, found.hits.map((hit) => h("li", { "data-key": `${hit.fileId}-${hit.ordinal}` },
    h("a", { class: "name", href: `#/files/${hit.fileId}` }, hit.fileName), h("span", { class: "muted" }, `passage ${number(hit.ordinal + 1)} · ${hit.score.toFixed(2)}`), h("p", {}, hit.text))));
}

function filesTable() {
  if (error) return h("p", { class: "wrong", role: "alert" }, error);
  if (!list) return loading();
  if (!list.length) return h("p", { class: "nothing" }, "No files yet. ", h("a", { href: "#/upload" }, "Upload one"), ".");
  return [
    table("Files", [
      { name: "File", isHead: true, cell: (file) => h("a", { class: "name", href: `#/files/${file.fileId}` }, file.fileName) },
      { name: "Status", cell: (file) => badge(file.status) },
      { name: "Size", isNumber: true, cell: (file) => bytes(file.size) },
      { name: "Announced", cell: (file) => time(file.createdAt) },
      { name: "Changed", cell: (file) => time(file.updatedAt) },
      { name: "Action", cell: (file) => deleteFile(file, lookSoon) },
    ], list, (file) => file.fileId),
    next && h("button", { type: "button", class: "more", onclick: more, "aria-busy": isLoadingMore ? "true" : null }, isLoadingMore ? "Loading…" : "Show more"),
  ];
}

export const files = {
  title: "Files",
  enter() {
    list = null;
    found = null;
    look();
  },
  render() {
    // Whatever changes a count or a status changes the dashboard too.
    if (live.dashboard !== seen || live.tenant !== tenant) {
      seen = live.dashboard;
      lookSoon();
    }
    return [
      h("h1", {}, "Files"),
      section("search", "Search in the text", [
        h("form", { class: "search", role: "search", onsubmit: search },
          h("label", { class: "visually-hidden", for: "query" }, "Search in the text of your files"),
          h("input", { id: "query", name: "query", type: "search", placeholder: "who signed for the coffee", autocomplete: "off" }),
          h("button", { type: "submit" }, "Search")),
        h("div", { "aria-live": "polite" }, hits()),
      ], { wide: true }),
      section("files", "Newest first", filesTable(), { wide: true, tools: h("a", { class: "button primary", href: "#/upload" }, "Upload") }),
    ];
  },
};
