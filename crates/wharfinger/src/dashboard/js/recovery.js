// The recovery page: files that make no progress, and files whose processing failed.

import { processAgain, processAllAgain, removeFromList, retryAllStuck, retryStuck } from "./actions.js";
import { now } from "./api.js";
import { h } from "./dom.js";
import { badge } from "./icons.js";
import { live } from "./live.js";
import { filesWithProblem } from "./problems.js";
import { loading, placeholder, section, table } from "./tables.js";
import { duration, number, time } from "./words.js";

const link = (id, name) => h("a", { class: "name", href: `#/files/${id}` }, name);
const errorLine = (error) => h("p", { class: "error" }, error);
/** Says that a list is not complete. `most` is the number of rows that are shown. */
const moreRows = (list, count, most) => (list.nextCursor && most >= count ? placeholder(`The first ${number(count)} are shown. There are more.`) : null);

export function stuckSection(most = 100) {
  const files = filesWithProblem(live.stuck);
  return section("stuck", "Stuck files", stuckTable(most), {
    tools: files.length > 1 ? retryAllStuck(files.length, live.stuck.nextCursor ? " or more" : "") : null,
    wide: true, count: live.stuck ? number(live.stuck.total) : null,
    hint: "Files that have made no progress for too long. Retry those whose worker or job is lost.",
  });
}

const NONE_STUCK = "None. All files are being processed.";

function stuckTable(most) {
  if (live.errors.stuck) return errorLine(live.errors.stuck);
  if (!live.stuck) return live.dashboard?.stuckFiles === 0 ? placeholder(NONE_STUCK) : loading();
  if (!live.stuck.files.length) return placeholder(NONE_STUCK);
  return [table("Stuck files", [
    { name: "File", isHead: true, cell: (file) => link(file.id, file.fileName) },
    { name: "Status", cell: (file) => badge(file.status) },
    { name: "No progress for", isNumber: true, cell: (file) => duration(Math.max(0, now() - Date.parse(file.updatedAt))) },
    { name: "Recoveries", isNumber: true, cell: (file) => number(file.retryCount) },
    { name: "Reason", cell: (file) => file.problem ?? h("span", { class: "muted" }, file.status === "queued" ? "Waiting for a worker" : "A worker is processing it") },
    { name: "Action", cell: (file) => retryStuck(file, file.problem ? "" : "quiet") },
  ], live.stuck.files.slice(0, most), (file) => file.id), moreRows(live.stuck, live.stuck.files.length, most)];
}

export function deadLettersSection(most = 100) {
  return section("dead-letters", "Failed files", deadLettersTable(most), {
    wide: true, count: live.dashboard ? number(live.dashboard.dlqDepth) : null, tools: live.deadLetters?.jobs.length > 1 ? processAllAgain(live.deadLetters.jobs) : null,
    hint: "Processing of these files failed. Fix the cause, then process them again.",
  });
}

const NONE_FAILED = "None. No file is waiting to be processed again.";

function deadLettersTable(most) {
  if (live.errors.deadLetters) return errorLine(live.errors.deadLetters);
  if (!live.deadLetters) return live.dashboard?.dlqDepth === 0 ? placeholder(NONE_FAILED) : loading();
  if (!live.deadLetters.jobs.length) return placeholder(NONE_FAILED);
  return [table("Failed files", [
    { name: "File", isHead: true, cell: (letter) => link(letter.fileId, letter.fileName) },
    { name: "Stage", cell: (letter) => letter.stage },
    { name: "Reason", cell: (letter) => h("div", {}, letter.reason, letter.lastError && letter.lastError !== letter.reason ? h("p", { class: "muted" }, letter.lastError) : null) },
    { name: "Attempts", isNumber: true, cell: (letter) => number(letter.attempts) },
    { name: "Failed", cell: (letter) => time(letter.diedAt) },
    { name: "Action", cell: (letter) => h("div", { class: "buttons" }, processAgain(letter), removeFromList(letter)) },
  ], live.deadLetters.jobs.slice(0, most), (letter) => letter.jobId), moreRows(live.deadLetters, live.deadLetters.jobs.length, most)];
}

export const recovery = {
  title: "Recovery",
  render: () => [h("h1", {}, "Recovery"), stuckSection(), deadLettersSection()],
};
