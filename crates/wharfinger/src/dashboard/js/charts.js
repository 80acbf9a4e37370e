// The charts: drawn by hand in SVG, each with the same figures as a table for who does not see it.

import { h, s } from "./dom.js";
import { clockTime, kindOf, meaningOf, number, plural, STATUSES } from "./words.js";

const WIDTH = 960;
const UP = 120;
const DOWN = 44;
const sum = (buckets, name) => buckets.reduce((total, bucket) => total + bucket[name], 0);

/** A round number that is at least this. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

/** Up: what became ready; down: what failed. Direction tells them apart, colour only repeats it. */
export function trendChart(trend) {
  const { buckets } = trend;
  const failures = (bucket) => bucket.failed + bucket.quarantined;
  const top = ceiling(Math.max(4, ...buckets.map((bucket) => bucket.ready)));
  const low = ceiling(Math.max(top / 4, ...buckets.map(failures)));
  const step = WIDTH / buckets.length;
  const height = (count, most, room) => (count ? Math.max(3, (count / most) * room) : 0);
  const bars = buckets.map((bucket, at) => {
    const x = at * step + step * 0.14;
    const [up, down] = [height(bucket.ready, top, UP), height(failures(bucket), low, DOWN)];
    const told = `${clockTime(bucket.at)}: ${number(bucket.ready)} ready, ${number(bucket.failed)} failed, ${number(bucket.quarantined)} quarantined`;
    return s("g", {}, s("title", {}, told),
      s("rect", { class: "hover", x: at * step, y: 0, width: step, height: UP + DOWN + 2 }),
      up && s("rect", { class: "bar ok", x, y: UP - up, width: step * 0.72, height: up, rx: 1.5 }),
      down && s("rect", { class: "bar bad", x, y: UP + 2, width: step * 0.72, height: down, rx: 1.5 }));
  });
  const total = { ready: sum(buckets, "ready"), failed: sum(buckets, "failed"), quarantined: sum(buckets, "quarantined") };
  const summary = `The last 24 hours: ${number(total.ready)} files became ready, ${number(total.failed)} failed, ${number(total.quarantined)} were quarantined.`;
  const hours = buckets.map((bucket, at) => ({ at, text: clockTime(bucket.at), isMark: at % 16 === 0 })).filter((mark) => mark.isMark);
  return h("figure", { class: "chart" },
    h("div", { class: "legend", "aria-hidden": "true" },
      h("span", { class: "key ok" }, "▲ ready"), h("span", { class: "key bad" }, "▼ failed or quarantined"),
      h("span", { class: "muted" }, `scale ${number(top)} per 15 min`)),
    s("svg", { viewBox: `0 0 ${WIDTH} ${UP + DOWN + 2}`, role: "img", "aria-label": summary, preserveAspectRatio: "none" },
      [0.25, 0.5, 0.75, 1].map((part) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: UP - UP * part + 0.5, y2: UP - UP * part + 0.5 })),
      bars,
      s("line", { class: "axis", x1: 0, x2: WIDTH, y1: UP + 1, y2: UP + 1 })),
    h("div", { class: "hours", "aria-hidden": "true" }, hours.map((mark) => h("span", {}, mark.text)), h("span", {}, "now")),
    h("figcaption", {}, h("details", {}, h("summary", {}, "As a table"), hourly(buckets))));
}

function hourly(buckets) {
  const rows = [];
  for (let at = 0; at < buckets.length; at += 4) {
    const hour = buckets.slice(at, at + 4);
    rows.push([hour[0].at, sum(hour, "ready"), sum(hour, "failed"), sum(hour, "quarantined")]);
  }
  return h("table", { class: "plain" },
    h("caption", { class: "visually-hidden" }, "Files by hour, the last 24 hours"),
    h("thead", {}, h("tr", {}, ["From", "Ready", "Failed", "Quarantined"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.reverse().map(([from, ...counts]) => h("tr", {}, h("th", { scope: "row" }, clockTime(from)), counts.map((count) => h("td", { class: "number" }, number(count)))))));
}

/** The way of a file with how many stand where, and what waits before each stage. */
export function pipelineStrip(dashboard) {
  const counts = dashboard.statusDistribution;
  const queues = { scanning: "file-scan", extracting: "file-extract", chunking: "file-chunk", embedding: "file-embed" };
  const total = STATUSES.reduce((all, status) => all + (counts[status] ?? 0), 0);
  const step = (status) => {
    const count = counts[status] ?? 0;
    const waiting = dashboard.queueDepths?.[queues[status]];
    return h("li", { class: `step ${kindOf(status)} ${count ? "" : "none"}`, "data-status": status, title: meaningOf(status) },
      h("span", { class: "step-count" }, number(count)),
      h("span", { class: "step-name" }, status),
      waiting === undefined ? null : h("span", { class: waiting ? "step-queue some" : "step-queue" }, `${number(waiting)} waiting`));
  };
  const share = (status) => h("span", { class: `share ${kindOf(status)} s-${status}`, style: { "flex-grow": String(counts[status]) } });
  return h("div", { class: "pipeline" },
    total ? h("div", { class: "shares", "aria-hidden": "true" }, STATUSES.filter((status) => counts[status]).map(share)) : null,
    h("ol", { class: "steps", "aria-label": `Status of ${plural(total, "file")}` }, STATUSES.map(step)));
}
