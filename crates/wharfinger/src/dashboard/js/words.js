// Sizes, times and counts as people read them, and the words for what the server names.

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

/** "10 GiB", "1.5 TiB" or plain bytes, as typed; null where it is neither. */
export function parseBytes(text) {
  const found = /^\s*([\d.]+)\s*([kmgtp]?)(i?b)?\s*$/i.exec(text);
  if (!found) return null;
  const power = ["", "k", "m", "g", "t", "p"].indexOf(found[2].toLowerCase());
  const value = Math.round(Number(found[1]) * 1024 ** power);
  return Number.isSafeInteger(value) ? value : null;
}

// Made once: making one costs more than using it a hundred times.
const counts = new Intl.NumberFormat("en");
const shares = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const clocks = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const exactClocks = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false });
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

export const number = (count) => counts.format(Number(count));
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
/** A share of a whole, where the least is still more than nothing. */
export const share = (part, whole) => {
  const value = whole > 0 ? (part / whole) * 100 : 100;
  return value > 0 && value < 0.1 ? "< 0.1 %" : percent(Math.round(value * 10) / 10);
};
export const percent = (value) => `${shares.format(Number(value))} %`;

export function duration(ms, isRough = false) {
  if (ms === null || ms === undefined) return "–";
  const of = (value, unit) => `${value < 10 && !isRough ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return of(ms / 1_000, "s");
  if (ms < 3_600_000) return of(ms / 60_000, "min");
  if (ms < 48 * 3_600_000) return of(ms / 3_600_000, "h");
  return of(ms / 86_400_000, "days");
}

function relative(at) {
  const ms = at - now();
  const words = duration(Math.abs(ms), true);
  if (Math.abs(ms) < 5_000) return "just now";
  return ms < 0 ? `${words} ago` : `in ${words}`;
}

export const absolute = (text) => moments.format(new Date(text));

/** "3 min ago", with the moment itself for who points at it or asks for it. */
export function time(text, absent = "never") {
  if (!text) return h("span", { class: "muted" }, absent);
  const at = Date.parse(text);
  return h("time", { datetime: text, title: absolute(at) }, relative(at));
}

export const clockTime = (text) => clocks.format(new Date(text));
export const exactTime = (text) => exactClocks.format(new Date(text));
export const day = (text) => days.format(new Date(text));

export const STATUSES = ["registered", "uploaded", "queued", "scanning", "extracting", "chunking", "embedding", "ready", "failed", "quarantined"];
export const isEnd = (status) => ["ready", "failed", "quarantined", "deleted"].includes(status);

const KINDS = { ready: "ok", failed: "bad", quarantined: "bad", registered: "wait", uploaded: "wait", queued: "wait", deleted: "wait" };
export const kindOf = (status) => KINDS[status] ?? "work";

const MEANINGS = {
  registered: "Announced and charged to the quota; the bytes have not been confirmed.",
  uploaded: "The bytes are there and confirmed.",
  queued: "Waits for the next stage.",
  scanning: "Is being checked for malware.",
  extracting: "Its text is being read.",
  chunking: "Its text is being cut into passages.",
  embedding: "Its passages become vectors for search.",
  ready: "Through all its stages: can be downloaded and found.",
  failed: "A stage gave up on it; its reason is kept.",
  quarantined: "Infected, or dangerous to its workers: kept apart.",
  deleted: "Gone; only its tombstone is kept.",
};
export const meaningOf = (status) => MEANINGS[status] ?? "";

const SWEEPS = {
  "stuck-file-recovery": "Finds files that nobody works on any more and begins them anew.",
  "orphan-cleanup": "Compares the store with the catalog; removes orphans, abandoned uploads and old failures.",
  "batch-timeout": "Ends batches that were open for too long.",
  "pending-cleanups": "Tries failed deletes again.",
  "quota-sync": "Compares each quota's counter with the files themselves.",
  "upload-window": "Takes back what was announced and never confirmed.",
};
export const sweepMeaning = (name) => SWEEPS[name] ?? "";
