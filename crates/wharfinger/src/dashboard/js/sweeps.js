// The sweeps: what each is for, when it ran, what came of it, and running one by hand.

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { dryRun, reportLine, runNow } from "./mending.js";
import { loading, section, table } from "./tables.js";
import { duration, sweepMeaning, time } from "./words.js";

function outcome(sweep) {
  if (sweep.runningOn) return h("span", { class: "badge work" }, icon("gear"), `running on ${sweep.runningOn}`);
  if (sweep.error) return h("div", {}, h("span", { class: "badge bad" }, icon("cross"), "trouble"), h("p", { class: "wrong" }, sweep.error));
  if (!sweep.lastRun) return h("span", { class: "muted" }, "has not run yet");
  return h("div", {}, h("span", { class: "badge ok" }, icon("check"), "done"), h("p", { class: "muted" }, reportLine(sweep.result)));
}

function sweepsTable() {
  if (!live.sweeps) return loading("sweeps");
  return table("Sweeps", [
    { name: "Sweep", isHead: true, cell: (sweep) => h("div", {}, h("span", { class: "name" }, sweep.name), h("p", { class: "muted small" }, sweepMeaning(sweep.name))) },
    { name: "Last run", cell: (sweep) => h("div", {}, time(sweep.lastRun), sweep.duration === null ? null : h("p", { class: "muted nowrap" }, `took ${duration(sweep.duration)}`)) },
    { name: "Outcome", cell: outcome },
    { name: "Next run", cell: (sweep) => h("div", {}, time(sweep.nextRun), h("p", { class: "muted nowrap" }, h("code", {}, sweep.schedule), " UTC")) },
    { name: "Action", cell: (sweep) => {
      const told = { ...sweep, meaning: sweepMeaning(sweep.name) };
      return h("div", { class: "buttons" }, runNow(told), dryRun(told));
    } },
  ], live.sweeps.sweeps, (sweep) => sweep.name);
}

export const sweeps = {
  title: "Sweeps",
  render: () => [h("h1", {}, "Sweeps"), section("sweeps", "What keeps the place in order", sweepsTable(), { wide: true, hint: "Each looks at the world and mends what it finds, by its schedule or now. A dry run only looks." })],
};
