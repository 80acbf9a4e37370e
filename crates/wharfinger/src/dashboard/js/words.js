// Formats sizes, times and counts for people, and explains the server's statuses and sweeps in words.

import { h } from "./dom.js";
import { now } from "./api.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  let value = Number(count);
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Bytes of a typed size: "10 GiB", "1.5 TiB" or a plain number. Null for any other text. */
export function parseBytes(text) {
  const found = /^\s*([\d.]+)\s*([kmgtp]?)(i?b)?\s*$/i.exec(text);
  if (!found) return null;
  const power = ["", "k", "m", "g", "t", "p"].indexOf(found[2].toLowerCase());
  const value = Math.round(Number(found[1]) * 1024 ** power);
  return Number.isSafeInteger(value) ? value : null;
}

// Created once: to create a formatter costs far more than to use it.
const counts = new Intl.NumberFormat("en");
const percentages = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const dateTimes = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const clockTimes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const exactTimes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false });
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

export const number = (count) => counts.format(Number(count));
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
/** A part of a whole in percent. A part above zero never shows as 0 %. */
export const share = (part, whole) => {
  const value = whole > 0 ? (part / whole) * 100 : 100;
  return value > 0 && value < 0.1 ? "< 0.1 %" : percent(Math.round(value * 10) / 10);
};
/** A text with a full stop at its end. */
export const sentence = (text) => (/[.!?…]$/.test(text) ? text : `${text}.`);
export const percent = (value) => `${percentages.format(Number(value))} %`;

export function duration(ms, isRough = false) {
  if (ms === null || ms === undefined) return "–";
  const withUnit = (value, unit) => `${value < 10 && !isRough ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return withUnit(ms / 1_000, "s");
  if (ms < 3_600_000) return withUnit(ms / 60_000, "min");
  if (ms < 48 * 3_600_000) return withUnit(ms / 3_600_000, "h");
  return withUnit(ms / 86_400_000, "days");
}

function relative(at) {
  const ms = at - now();
  const words = duration(Math.abs(ms), true);
  if (Math.abs(ms) < 5_000) return "just now";
  return ms < 0 ? `${words} ago` : `in ${words}`;
}

export const absolute = (text) => dateTimes.format(new Date(text));

/** "3 min ago", with the full date and time as a tooltip. */
export function time(text, absent = "never") {
  if (!text) return h("span", { class: "muted" }, absent);
  const at = Date.parse(text);
  return h("time", { datetime: text, title: absolute(at) }, relative(at));
}

/** When something runs next. */
export const nextTime = (text) => (Date.parse(text) - now() < 5_000 ? "due now" : h("span", {}, "next ", time(text)));

export const clockTime = (text) => clockTimes.format(new Date(text));
export const exactTime = (text) => exactTimes.format(new Date(text));
export const day = (text) => days.format(new Date(text));

export const STATUSES = ["registered", "uploaded", "queued", "scanning", "extracting", "chunking", "embedding", "ready", "failed", "quarantined"];
export const isFinal = (status) => ["ready", "failed", "quarantined", "deleted"].includes(status);

const STAGES = { scanning: "scan", extracting: "extract", chunking: "chunk", embedding: "embed" };
/** The stage that a file with this status is in, if it is in one. */
export const stageOfStatus = (status) => STAGES[status];

const KINDS = { ready: "ok", failed: "bad", quarantined: "bad", registered: "wait", uploaded: "wait", queued: "wait", deleted: "wait" };
export const kindOfStatus = (status) => KINDS[status] ?? "work";

const MEANINGS = {
  registered: "Waiting for the bytes. The size is charged to the quota, the upload is not confirmed yet.",
  uploaded: "The upload is complete and confirmed.",
  queued: "Waiting for the next stage.",
  scanning: "Being checked for malware.",
  extracting: "The text is being extracted.",
  chunking: "The text is being split into passages.",
  embedding: "Vectors for the search are being computed.",
  ready: "All stages are complete. The file can be downloaded.",
  failed: "Processing failed. The reason is shown with the file.",
  quarantined: "Infected, or changed in the store after the upload. It cannot be downloaded. After a false alarm, an operator can release it.",
  deleted: "Deleted. Only its record is left.",
};
export const statusMeaning = (status) => MEANINGS[status] ?? "";

const SWEEPS = {
  "stuck-file-recovery": "Finds stuck files and queues them again.",
  "orphan-cleanup": "Compares the store with the catalog. Deletes orphans, abandoned uploads and old failed files.",
  "batch-timeout": "Closes batches that were open for too long.",
  "pending-cleanups": "Deletes the objects of deleted files. Retries deletes that failed.",
  "quota-sync": "Compares each quota counter with the files and corrects it.",
  "upload-window": "Ends uploads that were not confirmed in time.",
};
export const sweepMeaning = (name) => SWEEPS[name] ?? "";
