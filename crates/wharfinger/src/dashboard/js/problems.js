// The answer to "what is wrong?": each trouble in words, worst first, with where to look and what mends it.

import { now } from "./api.js";
import { live } from "./live.js";
import { redrive, redriveAll, retryAllStuck, retryStuck, runNow, setLimit, triggerCleanup } from "./mending.js";
import { bytes, duration, number, plural, share, sweepMeaning } from "./words.js";
import { isOperator } from "./session.js";

const QUOTA_NEAR_PERCENT = 90;
const OVERDUE_MS = 120_000;
const SPOOL_OLD_MS = 60_000;

const areOnly = (count, one) => `${plural(count, one)} ${count === 1 ? "is" : "are"}`;

function ofBackends() {
  // Of the events' store more is known where the spool is told of.
  const isTold = (backend) => backend.name === "events" && live.spool?.spool && !live.spool.spool.isStoreUp && live.spool.spool.files > 0;
  const down = (live.readiness?.backends ?? []).filter((backend) => !backend.ok && !isTold(backend));
  return down.map((backend) => ({
    key: `backend-${backend.name}`, kind: backend.needed ? "bad" : "warn", href: "#/upkeep",
    title: backend.name === "blobs" ? "The object store does not answer" : `The ${backend.name} backend (${backend.kind}) does not answer`,
    detail: backend.needed ? "Uploads and downloads fail until it is back." : "Its work is done another way meanwhile.",
  }));
}

export const sick = (stuck) => stuck?.files.filter((file) => file.problem) ?? [];

function ofStuck() {
  const files = sick(live.stuck);
  const count = live.dashboard?.stuckFiles ?? 0;
  if (!files.length && live.errors.stuck && count) {
    return [{
      key: "stuck", kind: "bad", href: "#/recovery", title: count === 1 ? "1 file does not get on" : `${number(count)} files do not get on`,
      detail: `Which, and why, cannot be read: ${live.errors.stuck}`,
    }];
  }
  if (!files.length) return [];
  const longest = files[0];
  const more = live.stuck.nextCursor ? " or more" : "";
  return [{
    key: "stuck", kind: "bad", href: "#/recovery",
    title: `${number(files.length)}${more} ${files.length === 1 ? "file is" : "files are"} stuck`,
    detail: `“${longest.fileName}” for ${duration(now() - Date.parse(longest.updatedAt))}: ${longest.problem}.`,
    mend: files.length === 1 ? retryStuck(longest, "primary") : retryAllStuck(files.length, more),
  }];
}

/** Nothing is broken, and yet nothing happens. */
function ofWaiting() {
  const waiting = live.stuck?.files.filter((file) => !file.problem && file.status === "queued") ?? [];
  if (!waiting.length) return [];
  const [longest] = waiting;
  const more = live.stuck.nextCursor ? " or more" : "";
  return [{
    key: "waiting", kind: "warn", href: "#/recovery",
    title: `${number(waiting.length)}${more} ${waiting.length === 1 ? "file has" : "files have"} waited for too long`,
    detail: `“${longest.fileName}” for ${duration(now() - Date.parse(longest.updatedAt))}. It goes on when a worker takes it: is one running for its stage?`,
  }];
}

function ofLetters() {
  const depth = live.dashboard?.dlqDepth ?? 0;
  if (!depth) return [];
  const letter = live.letters?.jobs[0];
  return [{
    key: "letters", kind: "bad", href: "#/recovery",
    title: depth === 1 ? "1 dead letter" : `${number(depth)} dead letters`,
    detail: letter ? `“${letter.fileName}” failed at ${letter.stage}: ${letter.lastError ?? letter.reason}.` : "No stage will try these files again by itself.",
    mend: !letter ? null : live.letters.jobs.length === 1 ? redrive(letter, "primary") : redriveAll(live.letters.jobs),
  }];
}

function ofCleanups() {
  const { exhausted = 0, pending = 0 } = live.cleanups ?? {};
  if (!exhausted) return [];
  return [{
    key: "cleanups", kind: "bad", href: "#/upkeep",
    title: `${areOnly(exhausted, "delete")} given up`,
    detail: "The bytes of deleted files are still in the store.",
    mend: triggerCleanup(pending + exhausted),
  }];
}

function ofSpool() {
  const spool = live.spool?.spool;
  if (!spool || !spool.files) return [];
  const isFilling = spool.maxBytes > 0 && spool.bytes / spool.maxBytes > 0.5;
  if (spool.isStoreUp && (spool.oldestAge ?? 0) < SPOOL_OLD_MS && !isFilling) return [];
  return [{
    key: "spool", kind: spool.isStoreUp && !isFilling ? "warn" : "bad", href: "#/upkeep",
    title: spool.isStoreUp ? "Events wait on disk" : "Events wait on disk: their store is away",
    detail: `${plural(spool.files, "batch", "batches")}, ${bytes(spool.bytes)} of ${bytes(spool.maxBytes)}; the oldest since ${duration(spool.oldestAge)}. Beyond the limit the oldest are lost.`,
  }];
}

function ofSweeps() {
  const found = [];
  for (const sweep of live.sweeps?.sweeps ?? []) {
    const lateMs = now() - Date.parse(sweep.nextRun);
    const isLate = lateMs > OVERDUE_MS && !sweep.runningOn;
    if (!isLate && !sweep.error) continue;
    found.push({
      key: `sweep-${sweep.name}`, kind: "warn", href: "#/sweeps",
      title: isLate ? `The sweep ${sweep.name} is overdue` : `The sweep ${sweep.name} had trouble`,
      detail: isLate ? `It should have run ${duration(lateMs)} ago. Is a process with the role sweeper running?` : sweep.error,
      mend: runNow({ ...sweep, meaning: sweepMeaning(sweep.name) }, ""),
    });
  }
  return found;
}

function ofStore() {
  const found = [];
  const missing = live.orphans?.missingBlobs.count ?? 0;
  if (missing) {
    found.push({
      key: "missing", kind: "bad", href: "#/upkeep",
      title: missing === 1 ? "The bytes of 1 file are missing" : `The bytes of ${number(missing)} files are missing`,
      detail: `“${live.orphans.missingBlobs.samples[0]?.fileName}” is in the catalog, but its object is not in the store. Somebody removed it there, or a restore is incomplete.`,
    });
  }
  return found;
}

function ofQuota() {
  const quotas = isOperator() ? live.tenants?.tenants ?? [] : live.quota ? [live.quota] : [];
  const near = quotas.filter((quota) => quota.limit > 0 && (quota.used / quota.limit) * 100 >= QUOTA_NEAR_PERCENT);
  return near.slice(0, 3).map((quota) => ({
    key: `quota-${quota.tenant}`, kind: "warn", href: "#/upkeep",
    title: quota.used >= quota.limit ? `${quota.tenant} has used all its quota` : `${quota.tenant} is near its quota`,
    detail: `${bytes(quota.used)} of ${bytes(quota.limit)} (${share(quota.used, quota.limit)}). Uploads beyond it are refused.`,
    mend: isOperator() ? setLimit(quota) : null,
  }));
}

function ofLine() {
  const unread = { key: "trouble", kind: "bad", href: "#/upkeep", title: "The server cannot read its own figures", detail: `${live.trouble}. What you see is what it last said.` };
  if (!live.isCut) return live.trouble ? [unread] : [];
  return [{ key: "line", kind: "bad", href: "#/", title: "Changes do not come through", detail: "The server does not answer, or something between holds its stream back. This page tries again by itself, and looks now and then." }];
}

export function problems() {
  const found = [ofLine, ofBackends, ofStuck, ofWaiting, ofLetters, ofCleanups, ofStore, ofSpool, ofQuota, ofSweeps].flatMap((look) => look());
  const rank = { bad: 0, warn: 1 };
  return found.sort((a, b) => rank[a.kind] - rank[b.kind]);
}
