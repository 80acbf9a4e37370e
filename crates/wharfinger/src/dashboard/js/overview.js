// The first page: what is wrong and how to repair it, then the current figures.

import { pipelineStrip, trendChart } from "./charts.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { cleanupsSection, orphansSection, quotaSection, spoolSection } from "./maintenance.js";
import { notificationList } from "./notifications.js";
import { problems } from "./problems.js";
import { deadLettersSection, stuckSection } from "./recovery.js";
import { isAdmin, isOperator } from "./session.js";
import { loading, placeholder, section } from "./tables.js";
import { announce } from "./toasts.js";
import { duration, nextTime, number, percent, plural, time } from "./words.js";

const SHORT = 5;

let announced = "";

/** Announces problems that appear or disappear to screen readers, but not each new figure. */
function announceProblems(found) {
  const keys = found.map((problem) => problem.key).sort().join(" ") || "none";
  if (keys === announced) return;
  announced = keys;
  announce(found.length ? `${plural(found.length, "problem")}: ${found.map((problem) => problem.title).join("; ")}` : "No problems");
}

function health() {
  if (!live.dashboard && !live.isDisconnected && !live.serverError) return h("section", { class: "health wait", "data-key": "health" }, h("h2", {}, icon("clock"), "Loading…"));
  const found = problems();
  announceProblems(found);
  if (!found.length) {
    return h("section", { class: "health ok", id: "health", "data-key": "health" },
      h("h2", {}, icon("check"), "No problems"),
      h("p", {}, "No stuck files, no failed files to process again, no missing bytes."));
  }
  const worst = found[0].kind;
  return h("section", { class: `health ${worst}`, id: "health", "data-key": "health" },
    h("h2", {}, icon("warn"), found.length === 1 ? "1 problem needs your attention" : `${number(found.length)} problems need your attention`),
    h("ul", {}, found.map((problem) => h("li", { class: problem.kind, "data-key": problem.key, "data-problem": problem.key },
      h("div", {}, h("a", { href: problem.href }, problem.title), h("p", {}, problem.detail)),
      problem.action ?? null))));
}

const tile = (label, value, note, kind = "") => h("div", { class: `tile ${kind}` }, h("dt", {}, label), h("dd", {}, value), h("dd", { class: "muted" }, note));

function tiles({ metrics, activeBatches, stuckFiles, dlqDepth }) {
  return h("dl", { class: "tiles", "data-key": "tiles" },
    tile("Ready in 24 h", number(metrics.throughput24h), "files"),
    tile("Failure rate", percent(metrics.failureRate24h), "in 24 h", metrics.failureRate24h > 5 ? "bad" : ""),
    tile("Time to ready", duration(metrics.averageProcessingTime || null), "on average"),
    tile("Stuck", number(stuckFiles), "files", stuckFiles ? "warn" : ""),
    tile("Failed files", number(dlqDepth), "to process again", dlqDepth ? "bad" : ""),
    tile("Open batches", number(activeBatches), "being uploaded"));
}

function errors(list) {
  if (!list.length) return placeholder("None.");
  return h("ul", { class: "errors" }, list.map((error) => h("li", { "data-key": `${error.fileId}-${error.timestamp}` },
    h("a", { class: "name", href: `#/files/${error.fileId}` }, error.fileName), h("span", { class: "muted" }, time(error.timestamp)), h("p", {}, error.error))));
}

function sweepList() {
  if (!live.sweeps) return loading("sweeps");
  return h("ul", { class: "sweep-list" }, live.sweeps.sweeps.map((sweep) => h("li", { "data-key": sweep.name },
    h("span", { class: `dot ${sweep.error ? "bad" : sweep.runningOn ? "work" : sweep.lastRun ? "ok" : "wait"}` }, icon(sweep.error ? "cross" : sweep.runningOn ? "gear" : sweep.lastRun ? "check" : "clock")),
    h("span", { class: "name" }, sweep.name),
    h("span", { class: "muted" }, sweep.runningOn ? "running" : time(sweep.lastRun, "not run yet"), " · ", nextTime(sweep.nextRun)))));
}

const about = () => h("details", { class: "about", "data-key": "about" },
  h("summary", {}, "What is this?"),
  h("p", {}, "Wharfinger manages uploads from start to end. A client registers a file, and its size is charged to the quota of its tenant. The client sends the bytes directly to the object store and confirms the upload. ",
    "Confirmed files are scanned, their text is extracted, and they can be searched. Uploads that are not confirmed are removed. Stuck files are queued again. Objects without a file are found and deleted."),
  h("p", {}, "This page shows all changes live. ", h("a", { href: "#/upload" }, "Upload a file"), " and watch how it is processed. The ", h("a", { href: "/docs/" }, "API"), " can do everything that this page does."));

export const overview = {
  title: "Overview",
  render() {
    const dashboard = live.dashboard;
    return [
      h("h1", { class: "visually-hidden" }, "Overview"),
      health(),
      dashboard ? tiles(dashboard) : null,
      section("pipeline", "Files by status", dashboard ? pipelineStrip(dashboard) : loading("dashboard"), { wide: true }),
      dashboard?.stuckFiles > 0 && stuckSection(SHORT),
      dashboard?.dlqDepth > 0 && deadLettersSection(SHORT),
      section("trend", "The last 24 hours", live.trend ? trendChart(live.trend) : loading("trend"), { wide: true }),
      h("div", { class: "columns", "data-key": "columns" },
        quotaSection(),
        section("errors", "Recent errors", dashboard ? errors(dashboard.recentErrors.slice(0, SHORT)) : loading("dashboard")),
        orphansSection(),
        isOperator() && section("sweep-list", "Sweeps", sweepList(), { tools: h("a", { href: "#/sweeps" }, "Show all sweeps") }),
        isOperator() && spoolSection(),
        section("notifications", "Notifications", notificationList(SHORT), { tools: h("a", { href: "#/notifications" }, "Show all notifications") }),
        isAdmin() && live.cleanups && live.cleanups.pending + live.cleanups.exhausted > 0 && cleanupsSection(SHORT)),
      about(),
    ];
  },
};
