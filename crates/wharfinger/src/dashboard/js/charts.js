// The charts, drawn as SVG. The trend has the same figures as a table; the files by status are a list with numbers.

import { h, s } from "./dom.js";
import { clockTime, kindOfStatus, statusMeaning, number, plural, STATUSES } from "./words.js";

const WIDTH = 960;
const UP = 120;
const DOWN = 44;
const sum = (buckets, name) => buckets.reduce((total, bucket) => total + bucket[name], 0);

/** The next round number that is not smaller than `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}

/** Files that became ready point up, failed files point down: the chart can be read without colours. */
export function trendChart(trend) {
  const { buckets } = trend;
  const failures = (bucket) => bucket.failed + bucket.quarantined;
  const top = roundUp(Math.max(4, ...buckets.map((bucket) => bucket.ready)));
  const low = roundUp(Math.max(top / 4, ...buckets.map(failures)));
  const step = WIDTH / buckets.length;
  const height = (count, max, space) => (count ? Math.max(3, (count / max) * space) : 0);
  const bars = buckets.map((bucket, at) => {
    const x = at * step + step * 0.14;
    const [up, down] = [height(bucket.ready, top, UP), height(failures(bucket), low, DOWN)];
    const text = `${clockTime(bucket.at)}: ${number(bucket.ready)} ready, ${number(bucket.failed)} failed, ${number(bucket.quarantined)} quarantined`;
    return s("g", {}, s("title", {}, text),
      s("rect", { class: "hover", x: at * step, y: 0, width: step, height: UP + DOWN + 2 }),
      up && s("rect", { class: "bar ok", x, y: UP - up, width: step * 0.72, height: up, rx: 1.5 }),
      down && s("rect", { class: "bar bad", x, y: UP + 2, width: step * 0.72, height: down, rx: 1.5 }));
  });
  const total = { ready: sum(buckets, "ready"), failed: sum(buckets, "failed"), quarantined: sum(buckets, "quarantined") };
  const summary = `In the last 24 hours ${number(total.ready)} files became ready, ${number(total.failed)} failed, ${number(total.quarantined)} were quarantined.`;
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
    h("figcaption", {}, h("details", {}, h("summary", {}, "Show as a table"), hourly(buckets))));
}

function hourly(buckets) {
  const rows = [];
  for (let at = 0; at < buckets.length; at += 4) {
    const hour = buckets.slice(at, at + 4);
    rows.push([hour[0].at, sum(hour, "ready"), sum(hour, "failed"), sum(hour, "quarantined")]);
  }
  return h("table", { class: "plain" },
    h("caption", { class: "visually-hidden" }, "Files per hour in the last 24 hours"),
    h("thead", {}, h("tr", {}, ["From", "Ready", "Failed", "Quarantined"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.reverse().map(([from, ...counts]) => h("tr", {}, h("th", { scope: "row" }, clockTime(from)), counts.map((count) => h("td", { class: "number" }, number(count)))))));
}

/** The statuses in the order of the pipeline: the number of files in each, and of those that wait for each stage. */
export function pipelineStrip(dashboard) {
  const counts = dashboard.statusDistribution;
  const queues = { scanning: "file-scan", extracting: "file-extract", chunking: "file-chunk", embedding: "file-embed" };
  const total = STATUSES.reduce((all, status) => all + (counts[status] ?? 0), 0);
  const step = (status) => {
    const count = counts[status] ?? 0;
    const waiting = dashboard.queueDepths?.[queues[status]];
    return h("li", { class: `step ${kindOfStatus(status)} ${count ? "" : "none"}`, "data-status": status, title: statusMeaning(status) },
      h("span", { class: "step-count" }, number(count)),
      h("span", { class: "step-name" }, status),
      waiting === undefined ? null : h("span", { class: waiting ? "step-queue some" : "step-queue" }, `${number(waiting)} waiting`));
  };
  const share = (status) => h("span", { class: `share ${kindOfStatus(status)} s-${status}`, style: { "flex-grow": String(counts[status]) } });
  return h("div", { class: "pipeline" },
    total ? h("div", { class: "shares", "aria-hidden": "true" }, STATUSES.filter((status) => counts[status]).map(share)) : null,
    h("ol", { class: "steps", "aria-label": `Status of ${plural(total, "file")}` }, STATUSES.map(step)));
}
