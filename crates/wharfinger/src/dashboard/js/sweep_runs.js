// The page of one sweep: its last runs, with what each of them found and did.

import { dryRun, reportLine, runNow } from "./actions.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { pagedList } from "./paged_list.js";
import { placeholder, section, table } from "./tables.js";
import { duration, sweepMeaning, time } from "./words.js";

let sweep = "";

const runs = pagedList("runs", () => `/api/v2/maintenance/sweeps/${encodeURIComponent(sweep)}/runs`);

function result(run) {
  if (!run.endedAt) return h("span", { class: "badge work" }, icon("gear"), "running, or its process was lost");
  const figures = run.result ? h("p", { class: "muted" }, reportLine(run.result)) : null;
  if (run.error) return h("div", {}, h("span", { class: "badge bad" }, icon("cross"), "error"), h("p", { class: "error" }, run.error), figures);
  return h("div", {}, h("span", { class: "badge ok" }, icon("check"), run.idle ? "nothing to do" : "done"), run.idle ? null : figures);
}

function content() {
  if (runs.error) return h("p", { class: "error", role: "alert" }, runs.error);
  if (!runs.rows) return placeholder("Loading…");
  if (!runs.rows.length) return placeholder("This sweep has not run yet.");
  return [
    table("Runs", [
      { name: "Started", isHead: true, cell: (run) => time(run.startedAt) },
      { name: "Took", isNumber: true, cell: (run) => duration(run.duration) },
      { name: "Started by", cell: (run) => h("div", {}, run.by, run.dryRun ? h("p", { class: "muted" }, "dry run") : null) },
      { name: "Process", cell: (run) => run.instance },
      { name: "Result", cell: result },
    ], runs.rows, (run) => run.runId),
    runs.moreButton(),
  ];
}

export const sweepPage = {
  title: "Sweep",
  enter(name) {
    sweep = name;
    runs.open();
  },
  render() {
    runs.refetchAfter(live.sweeps);
    const withMeaning = { name: sweep, meaning: sweepMeaning(sweep) };
    return [
      h("a", { class: "back", href: "#/sweeps" }, "← All sweeps"),
      h("div", { class: "file-head" }, h("h1", {}, sweep), h("div", { class: "buttons" }, runNow(withMeaning), dryRun(withMeaning))),
      h("p", { class: "hint" }, withMeaning.meaning),
      section("runs", "Last runs", content(), { wide: true, hint: "The last 100 runs, with dry runs and runs by hand." }),
    ];
  },
};
