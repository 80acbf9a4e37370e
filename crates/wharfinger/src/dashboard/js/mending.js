// The actions themselves: what each will do in words, the call, and what came of it.

import { actionButton } from "./actions.js";
import { call, post } from "./api.js";
import { ofTenant, refetch, setQuota } from "./live.js";
import { bytes, duration, number, parseBytes, plural } from "./words.js";

const id = encodeURIComponent;

export const retryStuck = (file, kind = "") => actionButton({
  key: `retry-${file.id}`, label: "Retry", describe: `Retry ${file.fileName}`, kind,
  confirm: {
    title: "Retry this file?",
    says: [`“${file.fileName}” stands at ${file.status}. It will wait again for the stage that stopped, and be due at once.`,
      "Nothing it has already been through is done again. A worker that is at it in time keeps it."],
    verb: "Retry",
  },
  async run() {
    const answer = await post(`/api/v2/uploads/stuck/${id(file.id)}/retry`);
    await refetch.stuck();
    return { text: `“${file.fileName}” is queued again.`, detail: `It was ${answer.previousStatus}; begun anew ${plural(answer.retryCount, "time")} so far.` };
  },
});

/** `more` is " or more" where the list was cut. */
export const retryAllStuck = (count, more = "") => actionButton({
  key: "retry-all", label: "Retry all", describe: "Retry all stuck files", kind: "primary",
  confirm: {
    title: "Retry all stuck files?",
    says: [`${more ? `${number(count)}${more} files` : plural(count, "file")} that nobody works on will wait again for the stage that stopped, and be due at once.`,
      "Files that only wait their turn, or that a worker is at, are left alone."],
    verb: "Retry all",
  },
  async run() {
    const answer = await post(`/api/v2/uploads/stuck/retry-all${ofTenant("?")}`);
    await refetch.stuck();
    const detail = [
      answer.skippedCount ? `${number(answer.skippedCount)} left alone.` : "",
      answer.errors.length ? `${plural(answer.errors.length, "file")} could not be retried: ${answer.errors[0].error}` : "",
      answer.isBrokenOff ? "There were too many for one go: retry again for the rest." : "",
    ].filter(Boolean).join(" ");
    return { text: `${plural(answer.retriedCount, "file")} queued again.`, detail, isBad: !answer.success };
  },
});

export const redrive = (letter, kind = "") => actionButton({
  key: `redrive-${letter.jobId}`, label: "Redrive", describe: `Redrive ${letter.fileName}`, kind,
  confirm: {
    title: "Redrive this dead letter?",
    says: [`“${letter.fileName}” will wait again for ${letter.stage}, which gave up on it after ${plural(letter.attempts, "attempt")}.`,
      `What stopped it: ${letter.lastError ?? letter.reason}. If that is still so, it will come back here.`],
    verb: "Redrive",
  },
  async run() {
    const answer = await post(`/api/v2/dlq/${id(letter.jobId)}/redrive`);
    await refetch.letters();
    return { text: `“${letter.fileName}” is ${answer.status} again.` };
  },
});

export const redriveAll = (letters, kind = "primary") => actionButton({
  key: "redrive-all", label: "Redrive all", describe: "Redrive all dead letters shown", kind,
  confirm: {
    title: `Redrive ${plural(letters.length, "dead letter")}?`,
    says: ["Each of these files will wait again for the stage that gave up on it.", "Those whose trouble is still there will come back here."],
    verb: "Redrive all",
  },
  async run() {
    const failed = [];
    for (const letter of letters) {
      await post(`/api/v2/dlq/${id(letter.jobId)}/redrive`).catch((error) => failed.push(`${letter.fileName}: ${error.message}`));
    }
    await refetch.letters();
    return { text: `${plural(letters.length - failed.length, "file")} queued again.`, detail: failed[0] ?? "", isBad: failed.length > 0 };
  },
});

export const discard = (letter) => actionButton({
  key: `discard-${letter.jobId}`, label: "Discard", describe: `Discard the dead letter of ${letter.fileName}`, kind: "quiet",
  confirm: {
    title: "Discard this dead letter?",
    says: [`The letter of “${letter.fileName}” goes and can no longer be redriven.`, "The file itself stays, as failed."],
    verb: "Discard", isDanger: true,
  },
  async run() {
    await call("DELETE", `/api/v2/dlq/${id(letter.jobId)}`);
    await refetch.letters();
    return { text: `The dead letter of “${letter.fileName}” is gone; the file stays failed.` };
  },
});

export const deleteFile = (file, after = () => {}, kind = "quiet") => actionButton({
  key: `delete-${file.fileId}`, label: "Delete", describe: `Delete ${file.fileName}`, kind,
  confirm: {
    title: "Delete this file?",
    says: [`“${file.fileName}” (${bytes(file.size)}) goes for good, with its text and its place in the search.`,
      "Its quota is free at once; the bytes follow in the background. This cannot be undone."],
    verb: "Delete", isDanger: true,
  },
  async run() {
    await call("DELETE", `/api/v2/files/${id(file.fileId)}`);
    after();
    return { text: `“${file.fileName}” is deleted. ${bytes(file.size)} are free again.` };
  },
});

export const triggerCleanup = (count, kind = "primary") => actionButton({
  key: "cleanup", label: "Try deletes now", describe: "Try deletes now, those that are due", kind,
  confirm: {
    title: "Try the pending deletes now?",
    says: [`Of ${plural(count, "object")} of deleted files those that are due, and those that were given up, will be deleted from the store.`,
      "The others wait for their second delete, until nobody can write to their names any more. Only objects whose files are already deleted are touched."],
    verb: "Try now",
  },
  async run() {
    const done = await post(`/api/v1/maintenance/cleanup/trigger${ofTenant("?")}`);
    await refetch.pendingCleanups();
    const text = done.attempted ? `${number(done.done)} of ${plural(done.attempted, "delete")} done.` : "Nothing was due: what waits is deleted by itself when its time comes.";
    return { text, detail: done.failed ? `${number(done.failed)} failed again and stay on the list with the reason.` : "", isBad: done.failed > 0 };
  },
});

const flat = (result, before = "") => Object.entries(result ?? {}).flatMap(([name, value]) =>
  value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${name} `) : [[before + name, value]]);

/** A sweep's report in one line, without what is zero. */
export function reportLine(result) {
  const spaced = (name) => name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  const told = flat(result).filter(([, value]) => value !== 0 && value !== null && value !== false && !(Array.isArray(value) && !value.length));
  const value = (given, name) => (Array.isArray(given) ? given.length : typeof given === "number" ? (/bytes|size/i.test(name) ? bytes(given) : number(given)) : given);
  return told.map(([name, given]) => `${spaced(name)}: ${value(given, name)}`).join(", ") || "nothing to do";
}

const runSweep = (sweep, dryRun, kind) => actionButton({
  key: `${dryRun ? "dry-run" : "run"}-${sweep.name}`, label: dryRun ? "Dry run" : "Run now", kind,
  describe: `${dryRun ? "Dry run of" : "Run now:"} ${sweep.name}`,
  confirm: dryRun
    ? { title: `Dry run of ${sweep.name}?`, says: ["It looks at everything and changes nothing, and tells what it would do."], verb: "Look" }
    : { title: `Run ${sweep.name} now?`, says: [sweep.meaning, "This is the same run that its schedule would begin; what it deletes is deleted."], verb: "Run now" },
  async run() {
    const ran = await post(`/api/v2/maintenance/sweeps/${id(sweep.name)}/run`, { dryRun });
    refetch.sweeps();
    refetch.orphans();
    const text = dryRun ? `Dry run of ${sweep.name}: nothing was changed.` : `${sweep.name} ran in ${duration(ran.duration)}.`;
    return { text, detail: ran.error ?? `${dryRun ? "It would: " : ""}${reportLine(ran.result)}`, isBad: Boolean(ran.error) };
  },
});
export const runNow = (sweep, kind = "") => runSweep(sweep, false, kind);
export const dryRun = (sweep) => runSweep(sweep, true, "quiet");

export const setLimit = (quota, kind = "") => actionButton({
  key: `limit-${quota.tenant}`, label: "Set limit", describe: `Set limit of ${quota.tenant}`, kind,
  confirm: {
    title: `Set the limit of ${quota.tenant}`,
    says: [`${bytes(quota.used)} of ${bytes(quota.limit)} are in use. A limit below what is used deletes nothing: it refuses new uploads.`],
    verb: "Set limit",
    field: { label: "New limit, such as 10 GiB", value: parseBytes(bytes(quota.limit)) === quota.limit ? bytes(quota.limit) : `${quota.limit} B`, check: (text) => (parseBytes(text) === null ? "A size is a number with a unit, such as 500 MiB or 2 TiB." : "") },
  },
  async run(text) {
    const set = await call("PUT", `/api/v2/tenants/${id(quota.tenant)}/quota`, { body: { limit: parseBytes(text) } });
    setQuota(set);
    return { text: `${set.tenant} may now hold ${bytes(set.limit)}.` };
  },
});
