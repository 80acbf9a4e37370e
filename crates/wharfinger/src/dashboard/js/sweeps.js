// The sweeps page: what each sweep does, its last and next run, its result, and buttons to run it now.

import { dryRun, reportLine, runNow } from "./actions.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { loading, section, table } from "./tables.js";
import { duration, sweepMeaning, time } from "./words.js";

function result(sweep) {
  if (sweep.runningOn) return h("span", { class: "badge work" }, icon("gear"), `running on ${sweep.runningOn}`);
  if (sweep.error) return h("div", {}, h("span", { class: "badge bad" }, icon("cross"), "error"), h("p", { class: "error" }, sweep.error));
  if (!sweep.lastRun) return h("span", { class: "muted" }, "not run yet");
  return h("div", {}, h("span", { class: "badge ok" }, icon("check"), "done"), h("p", { class: "muted" }, reportLine(sweep.result)));
}

function sweepsTable() {
  if (!live.sweeps) return loading("sweeps");
  return table("Sweeps", [
    { name: "Sweep", isHead: true, cell: (sweep) => h("div", {}, h("a", { class: "name", href: `#/sweeps/${sweep.name}` }, sweep.name), h("p", { class: "muted small" }, sweepMeaning(sweep.name))) },
    { name: "Last run", cell: (sweep) => h("div", {}, time(sweep.lastRun), sweep.duration === null ? null : h("p", { class: "muted nowrap" }, `took ${duration(sweep.duration)}`)) },
    { name: "Result", cell: result },
    { name: "Next run", cell: (sweep) => h("div", {}, time(sweep.nextRun), h("p", { class: "muted nowrap" }, h("code", {}, sweep.schedule), " UTC")) },
    { name: "Action", cell: (sweep) => {
      const withMeaning = { ...sweep, meaning: sweepMeaning(sweep.name) };
      return h("div", { class: "buttons" }, runNow(withMeaning), dryRun(withMeaning));
    } },
  ], live.sweeps.sweeps, (sweep) => sweep.name);
}

export const sweeps = {
  title: "Sweeps",
  render: () => [h("h1", {}, "Sweeps"), section("sweeps", "All sweeps", sweepsTable(), { wide: true, hint: "Each sweep finds problems and repairs them, on its schedule or now. A dry run changes nothing. Open a sweep to see its last runs." })],
};
