// The first page: what is wrong, in words and with what mends it; then how everything stands.

import { pipelineStrip, trendChart } from "./charts.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { noticeList } from "./notices.js";
import { problems } from "./problems.js";
import { lettersSection, stuckSection } from "./recovery.js";
import { isKeeper, isOperator } from "./session.js";
import { loading, nothing, section } from "./tables.js";
import { say } from "./toasts.js";
import { cleanupsSection, orphansSection, quotaSection, spoolSection } from "./upkeep.js";
import { duration, number, percent, plural, time } from "./words.js";

const SHORT = 5;

let told = "";

/** Aloud when something has come or gone, and not for each digit that has changed. */
function sayWhenNew(found) {
  const keys = found.map((problem) => problem.key).sort().join(" ") || "none";
  if (keys === told) return;
  told = keys;
  say(found.length ? `${plural(found.length, "problem")}: ${found.map((problem) => problem.title).join("; ")}` : "All is well");
}

export function verdict() {
  if (!live.dashboard && !live.isCut && !live.trouble) return h("section", { class: "verdict wait", "data-key": "verdict" }, h("h2", {}, icon("clock"), "Looking…"));
  const found = problems();
  sayWhenNew(found);
  if (!found.length) {
    return h("section", { class: "verdict ok", id: "verdict", "data-key": "verdict" },
      h("h2", {}, icon("check"), "All is well"),
      h("p", {}, "Every file gets on, nothing was given up, and nothing is missing."));
  }
  const worst = found[0].kind;
  return h("section", { class: `verdict ${worst}`, id: "verdict", "data-key": "verdict" },
    h("h2", {}, icon("warn"), found.length === 1 ? "One thing needs you" : `${number(found.length)} things need you`),
    h("ul", {}, found.map((problem) => h("li", { class: problem.kind, "data-key": problem.key, "data-problem": problem.key },
      h("div", {}, h("a", { href: problem.href }, problem.title), h("p", {}, problem.detail)),
      problem.mend ?? null))));
}

const tile = (label, value, note, kind = "") => h("div", { class: `tile ${kind}` }, h("dt", {}, label), h("dd", {}, value), h("dd", { class: "muted" }, note));

function tiles({ metrics, activeBatches, stuckFiles, dlqDepth }) {
  return h("dl", { class: "tiles", "data-key": "tiles" },
    tile("Ready in 24 h", number(metrics.throughput24h), "files"),
    tile("Failure rate", percent(metrics.failureRate24h), "of 24 h", metrics.failureRate24h > 5 ? "bad" : ""),
    tile("Time to ready", duration(metrics.averageProcessingTime || null), "on average"),
    tile("Stuck", number(stuckFiles), "files", stuckFiles ? "warn" : ""),
    tile("Dead letters", number(dlqDepth), "to redrive", dlqDepth ? "bad" : ""),
    tile("Open batches", number(activeBatches), "being uploaded"));
}

function errors(list) {
  if (!list.length) return nothing("None.");
  return h("ul", { class: "errors" }, list.map((error) => h("li", { "data-key": `${error.fileId}-${error.timestamp}` },
    h("a", { class: "name", href: `#/files/${error.fileId}` }, error.fileName), h("span", { class: "muted" }, time(error.timestamp)), h("p", {}, error.error))));
}

function sweepsBrief() {
  if (!live.sweeps) return loading("sweeps");
  return h("ul", { class: "brief" }, live.sweeps.sweeps.map((sweep) => h("li", { "data-key": sweep.name },
    h("span", { class: `dot ${sweep.error ? "bad" : sweep.runningOn ? "work" : sweep.lastRun ? "ok" : "wait"}` }, icon(sweep.error ? "cross" : sweep.runningOn ? "gear" : sweep.lastRun ? "check" : "clock")),
    h("span", { class: "name" }, sweep.name),
    h("span", { class: "muted" }, sweep.runningOn ? "running" : time(sweep.lastRun, "not yet"), " · next ", time(sweep.nextRun)))));
}

const about = () => h("details", { class: "about", "data-key": "about" },
  h("summary", {}, "What is this?"),
  h("p", {}, "Wharfinger answers for every uploaded byte. A client announces a file, which is charged to its tenant's quota; sends the bytes straight to the object store; and confirms. ",
    "Confirmed files are scanned, read, cut into passages and made searchable. What is never confirmed is taken back, what gets stuck is begun anew, and what nobody answers for is found and removed."),
  h("p", {}, "This page shows all of that live. ", h("a", { href: "#/upload" }, "Upload a file"), " and watch it go through; the ", h("a", { href: "/docs/" }, "API"), " does everything you see here."));

export const overview = {
  title: "Overview",
  render() {
    const told = live.dashboard;
    const hasTrouble = told && (told.stuckFiles > 0 || told.dlqDepth > 0);
    const trouble = [told?.stuckFiles > 0 && stuckSection(SHORT), told?.dlqDepth > 0 && lettersSection(SHORT)];
    return [
      h("h1", { class: "visually-hidden" }, "Overview"),
      verdict(),
      told ? tiles(told) : null,
      section("pipeline", "Files by status", told ? pipelineStrip(told) : loading("dashboard"), { wide: true }),
      hasTrouble && trouble,
      section("trend", "The last 24 hours", live.trend ? trendChart(live.trend) : loading("trend"), { wide: true }),
      h("div", { class: "columns", "data-key": "columns" },
        quotaSection(),
        section("errors", "Recent errors", told ? errors(told.recentErrors.slice(0, SHORT)) : loading("dashboard")),
        orphansSection(),
        isOperator() && section("sweeps-brief", "Sweeps", sweepsBrief(), { tools: h("a", { href: "#/sweeps" }, "All about them") }),
        isOperator() && spoolSection(),
        section("notices", "Notifications", noticeList(SHORT), { tools: h("a", { href: "#/notifications" }, "All") }),
        isKeeper() && live.cleanups && live.cleanups.pending + live.cleanups.exhausted > 0 && cleanupsSection(SHORT)),
      about(),
    ];
  },
};
