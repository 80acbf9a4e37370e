// Finds what is wrong and describes each problem: what happened, where to look, and the button that repairs it. The worst
// problems come first.

import { processAgain, processAllAgain, retryAllStuck, retryStuck, runNow, setLimit, triggerCleanup } from "./actions.js";
import { now } from "./api.js";
import { live } from "./live.js";
import { isOperator } from "./session.js";
import { bytes, duration, number, plural, sentence, share, sweepMeaning } from "./words.js";

const QUOTA_NEAR_PERCENT = 90;
const OVERDUE_MS = 120_000;
const SPOOL_OLD_MS = 60_000;

const BACKENDS = {
  catalog: ["The database does not answer", ""],
  blobs: ["The object store does not answer", ""],
  quota: ["Redis (quotas) does not answer", "Quotas are counted in the database until it answers again."],
  broker: ["RabbitMQ does not answer", "Workers and delayed checks use the database until it answers again."],
  events: ["The event store does not answer", "Events are kept on disk and sent later."],
};

function backendProblems() {
  // The spool's own problem says more than this one.
  const isInSpool = (backend) => backend.name === "events" && live.spool?.spool && !live.spool.spool.isStoreUp && live.spool.spool.files > 0;
  const down = (live.readiness?.backends ?? []).filter((backend) => !backend.ok && !isInSpool(backend));
  return down.map((backend) => {
    const [title, without] = BACKENDS[backend.name] ?? [`The backend ${backend.name} (${backend.kind}) does not answer`, ""];
    return {
      key: `backend-${backend.name}`, kind: backend.needed ? "bad" : "warn", href: "#/maintenance", title,
      detail: backend.needed ? "Uploads and downloads fail until it answers again." : without || "This process works without it.",
    };
  });
}

/** Stages whose files wait because no worker asks for their jobs. */
function stageProblems() {
  return (live.readiness?.warnings ?? []).map((warning) => ({
    key: `warning-${warning.split(",")[0]}`, kind: "bad", href: "#/recovery",
    title: "A stage has no worker", detail: sentence(warning),
  }));
}

/** The listed files whose job will not continue by itself. The others only wait in a queue or are being processed. */
export const filesWithProblem = (stuck) => stuck?.files.filter((file) => file.problem) ?? [];

function stuckProblems() {
  const files = filesWithProblem(live.stuck);
  const count = live.dashboard?.stuckFiles ?? 0;
  if (!files.length && live.errors.stuck && count) {
    return [{
      key: "stuck", kind: "bad", href: "#/recovery", title: count === 1 ? "1 file is stuck" : `${number(count)} files are stuck`,
      detail: `The list cannot be loaded: ${sentence(live.errors.stuck)}`,
    }];
  }
  if (!files.length) return [];
  const longest = files[0];
  const more = live.stuck.nextCursor ? " or more" : "";
  return [{
    key: "stuck", kind: "bad", href: "#/recovery",
    title: `${number(files.length)}${more} ${files.length === 1 ? "file is" : "files are"} stuck`,
    detail: `“${longest.fileName}” has made no progress for ${duration(now() - Date.parse(longest.updatedAt))}: ${sentence(longest.problem)}`,
    action: files.length === 1 ? retryStuck(longest, "primary") : retryAllStuck(files.length, more),
  }];
}

/** Nothing is broken, but no worker takes these files. */
function waitingProblems() {
  const waiting = live.stuck?.files.filter((file) => !file.problem && file.status === "queued") ?? [];
  if (!waiting.length) return [];
  const [longest] = waiting;
  const more = live.stuck.nextCursor ? " or more" : "";
  return [{
    key: "waiting", kind: "warn", href: "#/recovery",
    title: `${number(waiting.length)}${more} ${waiting.length === 1 ? "file has" : "files have"} been queued for too long`,
    detail: `“${longest.fileName}” has waited for ${duration(now() - Date.parse(longest.updatedAt))}. Is a worker for its stage running?`,
  }];
}

function deadLetterProblems() {
  const depth = live.dashboard?.dlqDepth ?? 0;
  if (!depth) return [];
  const letters = live.deadLetters?.jobs ?? [];
  const [letter] = letters;
  return [{
    key: "dead-letters", kind: "bad", href: "#/recovery",
    title: `${plural(depth, "file")} failed`,
    detail: letter ? `“${letter.fileName}” failed in the stage ${letter.stage}: ${sentence(letter.lastError ?? letter.reason)}` : "Failed files are not retried automatically.",
    action: !letter ? null : letters.length === 1 ? processAgain(letter, "primary") : processAllAgain(letters),
  }];
}

function cleanupProblems() {
  const { exhausted = 0, pending = 0 } = live.cleanups ?? {};
  if (!exhausted) return [];
  return [{
    key: "cleanups", kind: "bad", href: "#/maintenance",
    title: `${plural(exhausted, "delete")} failed on every attempt`,
    detail: "The bytes of deleted files are still in the store. Each of these deletes is retried once a day.",
    action: triggerCleanup(pending + exhausted),
  }];
}

function spoolProblems() {
  const spool = live.spool?.spool;
  if (!spool || !spool.files) return [];
  const isFilling = spool.maxBytes > 0 && spool.bytes / spool.maxBytes > 0.5;
  if (spool.isStoreUp && (spool.oldestAge ?? 0) < SPOOL_OLD_MS && !isFilling) return [];
  return [{
    key: "spool", kind: spool.isStoreUp && !isFilling ? "warn" : "bad", href: "#/maintenance",
    title: spool.isStoreUp ? "Events are waiting on disk" : "Events are waiting on disk: the event store does not answer",
    detail: `${plural(spool.files, "batch", "batches")}, ${bytes(spool.bytes)} of ${bytes(spool.maxBytes)}. The oldest has waited for ${duration(spool.oldestAge)}. Above the limit the oldest events are deleted.`,
  }];
}

function sweepProblems() {
  const found = [];
  for (const sweep of live.sweeps?.sweeps ?? []) {
    const lateMs = now() - Date.parse(sweep.nextRun);
    const isLate = lateMs > OVERDUE_MS && !sweep.runningOn;
    if (!isLate && !sweep.error) continue;
    found.push({
      key: `sweep-${sweep.name}`, kind: "warn", href: "#/sweeps",
      title: isLate ? `The sweep ${sweep.name} is overdue` : `The sweep ${sweep.name} reported an error`,
      detail: isLate ? `It should have run ${duration(lateMs)} ago. Is a process with the role sweeper running?` : sweep.error,
      action: runNow({ ...sweep, meaning: sweepMeaning(sweep.name) }, ""),
    });
  }
  return found;
}

function storeProblems() {
  const missing = live.orphans?.missingBlobs.count ?? 0;
  if (!missing) return [];
  return [{
    key: "missing", kind: "bad", href: "#/maintenance",
    title: missing === 1 ? "The bytes of 1 file are missing" : `The bytes of ${number(missing)} files are missing`,
    detail: `“${live.orphans.missingBlobs.details[0]?.fileName}” is in the catalog, but its object is not in the store. Restore the object from a backup, or delete the file.`,
  }];
}

function quotaProblems() {
  const quotas = isOperator() ? live.tenants?.tenants ?? [] : live.quota ? [live.quota] : [];
  const near = quotas.filter((quota) => quota.limit > 0 && (quota.used / quota.limit) * 100 >= QUOTA_NEAR_PERCENT);
  return near.slice(0, 3).map((quota) => ({
    key: `quota-${quota.tenant}`, kind: "warn", href: "#/maintenance",
    title: quota.used >= quota.limit ? `${quota.tenant} has used its whole quota` : `${quota.tenant} is near its quota limit`,
    detail: `${bytes(quota.used)} of ${bytes(quota.limit)} are used (${share(quota.used, quota.limit)}). Uploads that do not fit are refused.`,
    action: isOperator() ? setLimit(quota) : null,
  }));
}

function connectionProblems() {
  if (live.isDisconnected) {
    return [{
      key: "connection", kind: "bad", href: "#/", title: "No live updates",
      detail: "The server does not answer, or a proxy holds the event stream back. The page tries to reconnect, and refreshes every 30 seconds.",
    }];
  }
  if (!live.serverError) return [];
  return [{
    key: "server-error", kind: "bad", href: "#/maintenance", title: "The server cannot read its own data",
    detail: `${sentence(live.serverError)} The page shows the last known state.`,
  }];
}

const CHECKS = [connectionProblems, backendProblems, stageProblems, stuckProblems, waitingProblems, deadLetterProblems, cleanupProblems, storeProblems, spoolProblems, quotaProblems, sweepProblems];

export function problems() {
  const rank = { bad: 0, warn: 1 };
  return CHECKS.flatMap((check) => check()).sort((a, b) => rank[a.kind] - rank[b.kind]);
}
