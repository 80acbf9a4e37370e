// The page of all files, newest first, and the search in their text.

import { deleteFile } from "./actions.js";
import { get, post } from "./api.js";
import { h } from "./dom.js";
import { badge } from "./icons.js";
import { emitChange, live, tenantQuery } from "./live.js";
import { loading, placeholder, section, table } from "./tables.js";
import { bytes, number, time } from "./words.js";

const PAGE = 50;
const REFETCH_MS_MIN = 1_000;

let list = null;
let next = null;
let error = "";
let isLoadingMore = false;
let found = null;
let lastDashboard = null;
let tenant = "";
let fetchedAt = 0;
let timer = 0;

async function fetchFiles() {
  timer = 0;
  fetchedAt = Date.now();
  if (tenant !== live.tenant) [tenant, list, next] = [live.tenant, null, null];
  const isStale = () => tenant !== live.tenant;
  try {
    const answer = await get(`/api/v2/files?limit=${Math.min(1000, Math.max(PAGE, list?.length ?? 0))}${tenantQuery("&")}`);
    if (isStale()) return;
    [list, next, error] = [answer.files, answer.nextCursor, ""];
  } catch (failed) {
    if (isStale()) return;
    error = failed.message;
  }
  emitChange();
}

/** Fetches the list soon, but at most once in REFETCH_MS_MIN. */
const fetchSoon = () => (timer ||= setTimeout(fetchFiles, Math.max(0, fetchedAt + REFETCH_MS_MIN - Date.now())));

async function more() {
  isLoadingMore = true;
  emitChange();
  const before = list;
  try {
    const answer = await get(`/api/v2/files?limit=${PAGE}&cursor=${encodeURIComponent(next)}${tenantQuery("&")}`);
    // The list may have been fetched again meanwhile: this page does not belong to the new list.
    if (list === before) [list, next] = [[...list, ...answer.files], answer.nextCursor];
  } catch (failed) {
    error = failed.message;
  }
  isLoadingMore = false;
  emitChange();
}

const search = async (event) => {
  event.preventDefault();
  const query = new FormData(event.target).get("query").trim();
  if (!query) return (found = null), emitChange();
  try {
    found = { query, hits: (await post("/api/v2/search", { query, limit: 10 })).hits };
  } catch (failed) {
    found = { query, hits: [], error: failed.message };
  }
  return emitChange();
};

function hits() {
  if (!found) return null;
  if (found.error) return h("p", { class: "error", role: "alert" }, found.error);
  if (!found.hits.length) return placeholder(`No passage matches “${found.query}”. Only files that are ready can be searched.`);
  return h("ol", { class: "hits" }, found.hits.map((hit) => h("li", { "data-key": `${hit.fileId}-${hit.ordinal}` },
    h("a", { class: "name", href: `#/files/${hit.fileId}` }, hit.fileName), h("span", { class: "muted" }, `passage ${number(hit.ordinal + 1)} · ${hit.score.toFixed(2)}`), h("p", {}, hit.text))));
}

function filesTable() {
  if (error) return h("p", { class: "error", role: "alert" }, error);
  if (!list) return loading();
  if (!list.length) return h("p", { class: "placeholder" }, "No files yet. ", h("a", { href: "#/upload" }, "Upload a file"), ".");
  return [
    table("Files", [
      { name: "File", isHead: true, cell: (file) => h("a", { class: "name", href: `#/files/${file.fileId}` }, file.fileName) },
      { name: "Status", cell: (file) => badge(file.status) },
      { name: "Size", isNumber: true, cell: (file) => bytes(file.size) },
      { name: "Registered", cell: (file) => time(file.createdAt) },
      { name: "Changed", cell: (file) => time(file.updatedAt) },
      { name: "Action", cell: (file) => deleteFile(file, fetchSoon) },
    ], list, (file) => file.fileId),
    next && h("button", { type: "button", class: "more", onclick: more, "aria-busy": isLoadingMore ? "true" : null }, isLoadingMore ? "Loading…" : "Show more"),
  ];
}

export const files = {
  title: "Files",
  enter() {
    list = null;
    found = null;
    fetchFiles();
  },
  render() {
    // The figures change whenever a file changes its status.
    if (live.dashboard !== lastDashboard || live.tenant !== tenant) {
      lastDashboard = live.dashboard;
      fetchSoon();
    }
    return [
      h("h1", {}, "Files"),
      section("search", "Search in file texts", [
        h("form", { class: "search", role: "search", onsubmit: search },
          h("label", { class: "visually-hidden", for: "query" }, "Search in the texts of your files"),
          h("input", { id: "query", name: "query", type: "search", placeholder: "For example: invoice for March", autocomplete: "off" }),
          h("button", { type: "submit" }, "Search")),
        h("div", { "aria-live": "polite" }, hits()),
      ], { wide: true }),
      section("files", "All files, newest first", filesTable(), { wide: true, tools: h("a", { class: "button primary", href: "#/upload" }, "Upload") }),
    ];
  },
};
