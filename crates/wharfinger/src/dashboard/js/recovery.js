// Files that do not get on, and files that no stage will try again.

import { now } from "./api.js";
import { h } from "./dom.js";
import { badge } from "./icons.js";
import { live } from "./live.js";
import { discard, redrive, redriveAll, retryAllStuck, retryStuck } from "./mending.js";
import { sick } from "./problems.js";
import { loading, nothing, section, table } from "./tables.js";
import { duration, number, time } from "./words.js";

const link = (id, name) => h("a", { class: "name", href: `#/files/${id}` }, name);
const wrong = (error) => h("p", { class: "wrong" }, error);
const cut = (list, count, most) => (list.nextCursor && most >= count ? nothing(`${number(count)} or more: these are the first.`) : null);

export function stuckSection(most = 100) {
  const tools = sick(live.stuck).length > 1 ? retryAllStuck(sick(live.stuck).length, live.stuck.nextCursor ? " or more" : "") : null;
  return section("stuck", "Stuck files", stuckTable(most), {
    tools, wide: true, count: live.stuck ? number(live.stuck.total) : null, hint: "Without progress for longer than they should be. Where nobody will come back to one, retry it.",
  });
}

function stuckTable(most) {
  if (live.errors.stuck) return wrong(live.errors.stuck);
  if (!live.stuck) return live.dashboard?.stuckFiles === 0 ? nothing("None: every file gets on.") : loading();
  if (!live.stuck.files.length) return nothing("None: every file gets on.");
  return [table("Stuck files", [
    { name: "File", isHead: true, cell: (file) => link(file.id, file.fileName) },
    { name: "Stands at", cell: (file) => badge(file.status) },
    { name: "For", isNumber: true, cell: (file) => duration(Math.max(0, now() - Date.parse(file.updatedAt))) },
    { name: "Begun anew", isNumber: true, cell: (file) => `${number(file.retryCount)} ×` },
    { name: "Why", cell: (file) => file.problem ?? h("span", { class: "muted" }, file.status === "queued" ? "Waits for a worker" : "A worker is at it") },
    { name: "Action", cell: (file) => retryStuck(file, file.problem ? "" : "quiet") },
  ], live.stuck.files.slice(0, most), (file) => file.id), cut(live.stuck, live.stuck.files.length, most)];
}

export function lettersSection(most = 100) {
  return section("letters", "Dead letters", lettersTable(most), {
    wide: true, count: live.dashboard ? number(live.dashboard.dlqDepth) : null, tools: live.letters?.jobs.length > 1 ? redriveAll(live.letters.jobs) : null,
    hint: "A stage gave up on these. Mend what stopped them, then redrive.",
  });
}

function lettersTable(most) {
  if (live.errors.letters) return wrong(live.errors.letters);
  if (!live.letters) return live.dashboard?.dlqDepth === 0 ? nothing("None: no stage has given up on a file.") : loading();
  if (!live.letters.jobs.length) return nothing("None: no stage has given up on a file.");
  return [table("Dead letters", [
    { name: "File", isHead: true, cell: (letter) => link(letter.fileId, letter.fileName) },
    { name: "Stage", cell: (letter) => letter.stage },
    { name: "Reason", cell: (letter) => h("div", {}, letter.reason, letter.lastError && letter.lastError !== letter.reason ? h("p", { class: "muted" }, letter.lastError) : null) },
    { name: "Attempts", isNumber: true, cell: (letter) => number(letter.attempts) },
    { name: "Died", cell: (letter) => time(letter.diedAt) },
    { name: "Action", cell: (letter) => h("div", { class: "buttons" }, redrive(letter), discard(letter)) },
  ], live.letters.jobs.slice(0, most), (letter) => letter.jobId), cut(live.letters, live.letters.jobs.length, most)];
}

export const recovery = {
  title: "Recovery",
  render: () => [h("h1", {}, "Recovery"), stuckSection(), lettersSection()],
};
