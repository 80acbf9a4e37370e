// The actions of the page: for each its button, a text that says what it will do, the call, and the message afterwards.

import { actionButton } from "./action_button.js";
import { call, post } from "./api.js";
import { refetch, setQuota, tenantQuery } from "./live.js";
import { bytes, duration, number, parseBytes, plural, sentence } from "./words.js";

const id = encodeURIComponent;

export const retryStuck = (file, kind = "") => actionButton({
  key: `retry-${file.id}`, label: "Retry", describe: `Retry ${file.fileName}`, kind,
  dialog: {
    title: "Retry this file?",
    text: [`“${file.fileName}” is in the status ${file.status}. It will be queued again for the same stage, without waiting time.`,
      "Completed stages are not repeated. If a worker still holds the file, nothing changes."],
    confirmLabel: "Retry",
  },
  async run() {
    const answer = await post(`/api/v2/uploads/stuck/${id(file.id)}/retry`);
    await refetch.stuck();
    return { text: `“${file.fileName}” is queued again.`, detail: `Its status was ${answer.previousStatus}. Recoveries so far: ${number(answer.retryCount)}.` };
  },
});

/** `more` is " or more" if the list of stuck files is not complete. */
export const retryAllStuck = (count, more = "") => actionButton({
  key: "retry-all", label: "Retry all stuck files", describe: "Retry all stuck files", kind: "primary",
  dialog: {
    title: "Retry all stuck files?",
    text: [`${more ? `${number(count)}${more} files` : plural(count, "file")} will be queued again for the same stage, without waiting time.`,
      "Files that only wait in a queue, that a worker holds, or that were retried too often are skipped. Retry the last ones one by one."],
    confirmLabel: "Retry all",
  },
  async run() {
    const answer = await post(`/api/v2/uploads/stuck/retry-all${tenantQuery("?")}`);
    await refetch.stuck();
    const detail = [
      answer.skippedCount ? `${number(answer.skippedCount)} skipped.` : "",
      answer.errors.length ? `${plural(answer.errors.length, "file")} could not be retried: ${answer.errors[0].error}` : "",
      answer.isBrokenOff ? "The request took too long and stopped. Retry again for the rest." : "",
    ].filter(Boolean).join(" ");
    return { text: `${plural(answer.retriedCount, "file")} queued again.`, detail, isBad: !answer.success };
  },
});

export const processAgain = (letter, kind = "") => actionButton({
  key: `redrive-${letter.jobId}`, label: "Process again", describe: `Process again: ${letter.fileName}`, kind,
  dialog: {
    title: "Process this file again?",
    text: [`“${letter.fileName}” will be queued again for the stage ${letter.stage}, which failed after ${plural(letter.attempts, "attempt")}.`,
      `Reason: ${letter.lastError ?? letter.reason}. If the cause is still there, the file will fail again.`],
    confirmLabel: "Process again",
  },
  async run() {
    const answer = await post(`/api/v2/dlq/${id(letter.jobId)}/redrive`);
    await refetch.deadLetters();
    if (answer.status === "ready") return { text: `“${letter.fileName}” is ready.`, detail: `The stage ${letter.stage} is not configured any more.` };
    return { text: `“${letter.fileName}” is ${answer.status} again.` };
  },
});

export const processAllAgain = (letters, kind = "primary") => {
  const label = `Process ${plural(letters.length, "file")} again`;
  return actionButton({
    key: "redrive-all", label, describe: label, kind,
    dialog: {
      title: `${label}?`,
      text: ["Each file will be queued again for the stage that failed.", "Files whose cause is still there will fail again."],
      confirmLabel: label,
    },
    async run() {
      const failed = [];
      for (const letter of letters) {
        await post(`/api/v2/dlq/${id(letter.jobId)}/redrive`).catch((error) => failed.push(`${letter.fileName}: ${error.message}`));
      }
      await refetch.deadLetters();
      return { text: `${plural(letters.length - failed.length, "file")} queued again.`, detail: failed[0] ?? "", isBad: failed.length > 0 };
    },
  });
};

export const removeFromList = (letter) => actionButton({
  key: `discard-${letter.jobId}`, label: "Remove from list", describe: `Remove from list: ${letter.fileName}`, kind: "quiet",
  dialog: {
    title: "Remove this file from the list?",
    text: [`“${letter.fileName}” can no longer be processed again.`, "The file is not deleted. It keeps the status failed."],
    confirmLabel: "Remove from list", isDanger: true,
  },
  async run() {
    await call("DELETE", `/api/v2/dlq/${id(letter.jobId)}`);
    await refetch.deadLetters();
    return { text: `“${letter.fileName}” is removed from the list. It stays failed.` };
  },
});

const REASON_CHARS_MAX = 300;

export const releaseFile = (file, after = () => {}, kind = "") => actionButton({
  key: `release-${file.fileId}`, label: "Release", describe: `Release ${file.fileName}`, kind,
  dialog: {
    title: "Release this file from quarantine?",
    text: [`“${file.fileName}” was quarantined: ${sentence(file.error ?? "no reason is known")}`,
      "Release it only after a false alarm: it can then be processed and downloaded. It is not scanned again, unless its scan never ended.",
      "If its object was changed in the store, the confirmed bytes must be there again."],
    confirmLabel: "Release", isDanger: true,
    field: {
      label: "Reason, for the history of the file", value: "",
      check: (text) => (!text.trim() ? "Enter a reason." : text.length > REASON_CHARS_MAX ? `Enter at most ${REASON_CHARS_MAX} characters.` : ""),
    },
  },
  async run(reason) {
    const answer = await post(`/api/v2/files/${id(file.fileId)}/release`, { reason: reason.trim() });
    after();
    return { text: `“${file.fileName}” is released.`, detail: `Its status is now ${answer.status}.` };
  },
});

export const deleteFile = (file, after = () => {}, kind = "quiet") => actionButton({
  key: `delete-${file.fileId}`, label: "Delete", describe: `Delete ${file.fileName}`, kind,
  dialog: {
    title: "Delete this file?",
    text: [`“${file.fileName}” (${bytes(file.size)}) will be deleted, with its text and its search entries.`,
      "The bytes are removed in the background. This page cannot restore a deleted file."],
    confirmLabel: "Delete", isDanger: true,
  },
  async run() {
    await call("DELETE", `/api/v2/files/${id(file.fileId)}`);
    after();
    return { text: `“${file.fileName}” is deleted.` };
  },
});

export const triggerCleanup = (count, kind = "primary") => actionButton({
  key: "cleanup", label: "Retry deletes now", describe: "Retry deletes now", kind,
  dialog: {
    title: "Retry pending deletes now?",
    text: [`${plural(count, "delete")} ${count === 1 ? "is" : "are"} pending. Those that failed or are due will be tried now.`,
      "The others wait for their second delete, until nothing can write to the object any more. Only objects of deleted files are touched."],
    confirmLabel: "Retry now",
  },
  async run() {
    const outcome = await post(`/api/v1/maintenance/cleanup/trigger${tenantQuery("?")}`);
    await refetch.pendingCleanups();
    const text = outcome.attempted ? `${number(outcome.done)} of ${plural(outcome.attempted, "delete")} done.` : "Nothing was due. Pending deletes run automatically when they are due.";
    return { text, detail: outcome.failed ? `${number(outcome.failed)} failed again. The list of pending deletes shows the reason.` : "", isBad: outcome.failed > 0 };
  },
});

const flatten = (result, prefix = "") => Object.entries(result ?? {}).flatMap(([name, value]) =>
  value && typeof value === "object" && !Array.isArray(value) ? flatten(value, `${prefix}${name} `) : [[prefix + name, value]]);

/** The result of a sweep in one line, without figures that are zero. */
export function reportLine(result) {
  const spaced = (name) => name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  const shown = flatten(result).filter(([, value]) => value !== 0 && value !== null && value !== false && !(Array.isArray(value) && !value.length));
  const text = (value, name) => (Array.isArray(value) ? value.length : typeof value === "number" ? (/bytes|size/i.test(name) ? bytes(value) : number(value)) : value);
  return shown.map(([name, value]) => `${spaced(name)}: ${text(value, name)}`).join(", ") || "nothing to do";
}

const runSweep = (sweep, isDryRun, kind, label) => actionButton({
  key: `${isDryRun ? "dry-run" : "run"}-${sweep.name}`, label, kind, describe: `${label}: ${sweep.name}`,
  dialog: isDryRun
    ? { title: `Start a dry run of ${sweep.name}?`, text: ["A dry run checks everything and changes nothing. It reports what a real run would do."], confirmLabel: "Start dry run" }
    : { title: `Run ${sweep.name} now?`, text: [sweep.meaning, "This is a real run, like a run on schedule. Objects that it deletes cannot be restored."], confirmLabel: "Run now" },
  async run() {
    const outcome = await post(`/api/v2/maintenance/sweeps/${id(sweep.name)}/run`, { dryRun: isDryRun });
    refetch.sweeps();
    refetch.orphans();
    const text = isDryRun ? `Dry run of ${sweep.name}: nothing was changed.` : `${sweep.name} finished in ${duration(outcome.duration)}.`;
    return { text, detail: outcome.error ?? `${isDryRun ? "A real run would report: " : ""}${reportLine(outcome.result)}`, isBad: Boolean(outcome.error) };
  },
});
export const runNow = (sweep, kind = "", label = "Run now") => runSweep(sweep, false, kind, label);
export const dryRun = (sweep) => runSweep(sweep, true, "quiet", "Dry run");

export const scanOrphans = () => actionButton({
  key: "scan-orphans", label: "Scan now", describe: "Scan now for orphans",
  dialog: {
    title: "Scan the store for orphans now?",
    text: ["The whole store is compared with the catalog. Nothing is deleted.", "Afterwards this page shows what the next cleanup would delete. The cleanup checks each object again."],
    confirmLabel: "Scan now",
  },
  async run() {
    const outcome = await post("/api/v2/uploads/orphans/scan");
    await refetch.orphans();
    refetch.sweeps();
    const { total } = outcome.result.orphanBlobs;
    const text = total ? `Scan finished: ${plural(total, "object")} would be deleted.` : "Scan finished: no object would be deleted.";
    return { text, detail: outcome.error ?? `It took ${duration(outcome.duration)}.`, isBad: Boolean(outcome.error) };
  },
});

export const setLimit = (quota, kind = "") => actionButton({
  key: `limit-${quota.tenant}`, label: "Set limit", describe: `Set limit of ${quota.tenant}`, kind,
  dialog: {
    title: `Set the quota limit of ${quota.tenant}`,
    text: [`${bytes(quota.used)} of ${bytes(quota.limit)} are used. A limit below the used size deletes nothing, but new uploads are refused.`],
    confirmLabel: "Set limit",
    field: {
      label: "New limit, for example 10 GiB", value: parseBytes(bytes(quota.limit)) === quota.limit ? bytes(quota.limit) : `${quota.limit} B`,
      check: (text) => (parseBytes(text) === null ? "Enter a size with a unit, for example 500 MiB or 2 TiB." : ""),
    },
  },
  async run(text) {
    const fresh = await call("PUT", `/api/v2/tenants/${id(quota.tenant)}/quota`, { body: { limit: parseBytes(text) } });
    setQuota(fresh);
    return { text: `The quota limit of ${fresh.tenant} is now ${bytes(fresh.limit)}.` };
  },
});
