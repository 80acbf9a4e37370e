// The log of deleted objects: what was deleted, why, and by which sweep.

import { now } from "./api.js";
import { h } from "./dom.js";
import { emitChange, live, tenantQuery } from "./live.js";
import { pagedList } from "./paged_list.js";
import { isOperator } from "./session.js";
import { placeholder, section, table } from "./tables.js";
import { bytes, number, time } from "./words.js";

const HOUR_MS = 3_600_000;
const PERIODS = { hour: ["Last hour", HOUR_MS], day: ["Last 24 hours", 24 * HOUR_MS], week: ["Last 7 days", 168 * HOUR_MS], all: ["All", 0] };
const REASONS = { deleted: "deleted", reclaimed: "not confirmed, or too old", orphan_blob: "no file has it", unfinished_upload: "unfinished upload", superseded: "output of a failed attempt" };

let period = "day";
let since = "";

const list = pagedList("deletions", () => `/api/v2/maintenance/deletions?since=${since}${tenantQuery("&")}`);

function choose(name) {
  period = name;
  const ms = PERIODS[name][1];
  since = ms ? new Date(now() - ms).toISOString() : "1970-01-01T00:00:00Z";
}

export function openDeletions() {
  choose(period);
  list.open();
}

const periodPicker = () => h("label", { class: "picker" }, h("span", {}, "Since"),
  h("select", { id: "deletions-since", onchange: (event) => (choose(event.target.value), emitChange()) },
    Object.entries(PERIODS).map(([name, [label]]) => h("option", { value: name, selected: name === period }, label))));

const amount = (line) => (line.objects === 0 ? "–" : line.objects === 1 ? bytes(line.size) : `${number(line.objects)} objects`);

function content() {
  if (list.error) return h("p", { class: "error", role: "alert" }, list.error);
  if (!list.rows) return placeholder("Loading…");
  if (!list.rows.length) return placeholder("Nothing was deleted in this time.");
  return [
    table("Deleted objects", [
      { name: "Object", isHead: true, cell: (line) => h("code", {}, line.key) },
      { name: "Size", isNumber: true, cell: amount },
      { name: "Reason", cell: (line) => h("span", { title: line.reason }, REASONS[line.reason] ?? line.reason) },
      { name: "Ordered by", cell: (line) => line.sweep ?? h("span", { class: "muted" }, line.by ?? "the server") },
      isOperator() && { name: "Tenant", cell: (line) => line.tenant ?? h("span", { class: "muted" }, "none") },
      { name: "Deleted", cell: (line) => time(line.deletedAt) },
    ].filter(Boolean), list.rows, (line) => `${line.deletedAt} ${line.key}`),
    list.moreButton(),
  ];
}

export function deletionsSection() {
  list.refetchAfter(live.cleanups, live.sweeps);
  return section("deletions", "Deleted objects", content(), { tools: periodPicker(), wide: true, hint: "Objects that are deleted from the store, newest first. What stages made of a file is one line." });
}
