// Runs uploads: registers the files (several as one batch), sends and confirms them, and shows how they are processed. An
// upload continues after a reload. One tab at a time works on it; the other tabs show that.

import { call, Cancelled, get, isTemporary, post, withRetries } from "./api.js";
import { emitChange, onChange, onNotification } from "./live.js";
import { current } from "./session.js";
import * as stored from "./stored_uploads.js";
import { announce } from "./toasts.js";
import { freshGrant, transfer } from "./transfer.js";
import { bytes, isFinal, plural, sentence } from "./words.js";

const POLL_MS = 1_500;
const POLL_MS_MAX = 30_000;
/** More files are polled less often: the pause grows by this for each file. */
const POLL_MS_PER_FILE = 10;
const POLLED_FILES_MAX = 20;
const REGISTER_MS = 120_000;
/** The server may have to read a large object completely to check it. */
const CONFIRM_MS = 600_000;
const STORED_MS_MAX = 7 * 24 * 3_600_000;
const BATCH_FILES_MAX = 5_000;

/** In the order in which they were chosen. `state`: other-tab, waiting, sending, confirming, processing, done, failed,
 *  needs-file, cancelled. */
export const items = [];

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const owner = () => `${current()?.tenant}/${current()?.user}`;
const LEFT_TO_SEND = ["other-tab", "waiting", "sending", "confirming", "failed", "needs-file"];
const inBatch = (item) => items.filter((other) => item.batchKey && other.batchKey === item.batchKey);

function set(item, changes) {
  Object.assign(item, changes);
  emitChange();
}

/** A text that says what the user can do about the error. */
function errorText(error) {
  const { code, problem = {} } = error;
  if (code === "quota_exceeded" || code === "unconfirmed_limit") {
    const what = code === "quota_exceeded" ? "Quota exceeded" : "Limit of unconfirmed uploads exceeded";
    return `${what}: this upload needs ${bytes(problem.requested)}, ${bytes(Math.max(0, problem.limit - problem.used))} are free.`;
  }
  if (code === "gone" || code === "not_found") return "The server no longer has this upload. Try again to upload it as a new file.";
  return error.message;
}

const registration = (item) => ({
  fileName: item.name, size: item.size, ...(item.type ? { contentType: item.type } : {}), ...(item.path ? { metadata: { path: item.path } } : {}),
});

async function register(group) {
  try {
    await registerOnce(group);
  } catch (error) {
    if (error.code !== "idempotency_mismatch") throw error;
    // Some files were cancelled since the first attempt: the others are a different batch now.
    const left = group.filter((item) => !item.fileId);
    const batchKey = newKey();
    for (const item of left) if (item.batchKey) item.batchKey = batchKey;
    await Promise.all(left.map((item) => stored.change(item.key, { batchKey: item.batchKey })));
    await registerOnce(left);
  }
}

/** Shows the error of a failed attempt on each item while it is retried. */
const showRetry = (group) => (error) => {
  for (const item of group) item.error = `${sentence(error.message)} Retrying.`;
  emitChange();
};

async function registerOnce(group) {
  const [first] = group;
  const headers = { "idempotency-key": `page-${first.batchKey ?? first.key}` };
  const isBatch = first.batchKey !== null;
  const body = isBatch ? { files: group.map(registration) } : registration(first);
  const answer = await withRetries(() => post(isBatch ? "/api/v2/batches" : "/api/v2/files/init", body, { headers }), {
    forMs: REGISTER_MS, onRetry: showRetry(group), signal: isBatch ? undefined : first.stop.signal,
  });
  const grants = isBatch ? answer.files : [answer];
  await Promise.all(group.map((item, at) => {
    item.grant = grants[at];
    item.fileId = grants[at].fileId;
    item.batchId = answer.batchId ?? null;
    return stored.change(item.key, { fileId: item.fileId, batchId: item.batchId });
  }));
}

async function confirm(item) {
  set(item, { state: "confirming", sent: item.size, error: "" });
  const { status } = await withRetries(() => post(`/api/v2/files/${item.fileId}/confirm`), { forMs: CONFIRM_MS, signal: item.stop.signal, onRetry: showRetry([item]) });
  set(item, { state: isFinal(status) ? "done" : "processing", status, error: "" });
  pollSoon();
}

/** A batch is completed when all its files are confirmed or cancelled. */
async function finish(item) {
  if (!item.batchKey) return stored.remove(item.key);
  await stored.change(item.key, { file: null, isConfirmed: true });
  return completeBatch(item);
}

/** Completes the batch unless some of its files are still to be sent. */
async function completeBatch({ batchKey, batchId }) {
  const rest = inBatch({ batchKey });
  if (!batchId || !rest.length || rest.some((other) => LEFT_TO_SEND.includes(other.state))) return;
  try {
    await withRetries(() => post(`/api/v2/batches/${batchId}/complete`), { forMs: CONFIRM_MS });
  } catch (error) {
    // After a temporary error the stored uploads stay, and the next page load tries again.
    if (isTemporary(error) || !current()) return;
  }
  await Promise.all(rest.map((other) => stored.remove(other.key)));
}

async function runUpload(item) {
  if (item.state === "cancelled") return undefined;
  item.stop ??= new AbortController();
  const { signal } = item.stop;
  try {
    set(item, { state: "waiting", error: "" });
    stored.change(item.key, { keptAt: Date.now(), refusal: "" });
    if (!item.fileId) await (item.registering ??= register([item]));
    const grant = item.grant ?? await freshGrant(item.fileId, signal, showRetry([item]));
    delete item.grant;
    if (signal.aborted) throw new Cancelled();
    if (grant?.uploadUrl || grant?.multipart) {
      if (!(await stored.isReadable(item.file))) return set(item, { state: "needs-file", error: "" });
      set(item, { state: "sending", error: "" });
      await transfer(grant, item.fileId, item.file, signal, (sent) => set(item, { sent }));
    }
    await confirm(item);
    await finish(item);
  } catch (error) {
    if (error instanceof Cancelled || signal.aborted) return set(item, { state: "cancelled", error: "" });
    if (["gone", "not_found"].includes(error.code)) await forgetRegistration(item);
    // A refused upload is not retried by a reload: the user has to do it.
    if (!isTemporary(error)) await stored.change(item.key, { refusal: errorText(error) });
    set(item, { state: signal.aborted ? "cancelled" : "failed", error: errorText(error), isTemporary: isTemporary(error) });
  } finally {
    delete item.registering;
  }
  return undefined;
}

/** The next attempt registers it as a new file that belongs to no batch. */
function forgetRegistration(item) {
  const old = item.key;
  Object.assign(item, { key: newKey(), fileId: null, batchId: null, batchKey: null, grant: null, registering: null });
  return stored.remove(old).then(() => save(item));
}

/** Runs `work` while this tab holds the lock of the item. Browsers without locks run it at once. */
function withLock(item, work) {
  // The user may have signed out while the tab waited for the lock.
  const start = () => (items.includes(item) ? work() : undefined);
  if (!navigator.locks) return start();
  return navigator.locks.request(`wharfinger-upload-${item.key}`, start);
}

/** Stores the record first and adds the bytes without waiting for them. */
async function save(item) {
  const { key, name, path, size, type, lastModified, batchKey, at, fileId, batchId } = item;
  const record = { key, name, path, size, type, lastModified, batchKey, at, fileId, batchId, owner: owner() };
  await stored.put({ ...record, file: null, isConfirmed: false, keptAt: Date.now(), refusal: "" });
  stored.change(key, { file: item.file });
}

/** Uploads new files. `chosen`: [{ file, path }]. */
export async function add(chosen) {
  for (let from = 0; from < chosen.length; from += BATCH_FILES_MAX) {
    const slice = chosen.slice(from, from + BATCH_FILES_MAX);
    const batchKey = slice.length > 1 ? newKey() : null;
    const group = slice.map(({ file, path }, at) => ({
      key: newKey(), name: file.name, path: path === file.name ? "" : path ?? "", size: file.size, type: file.type,
      lastModified: file.lastModified, file, batchKey, at, fileId: null, batchId: null, state: "waiting", sent: 0, status: "", error: "",
    }));
    items.push(...group);
    emitChange();
    await Promise.all(group.map(save));
    // Some may have been cancelled while they were stored.
    const left = new Set(items);
    startGroup(group.filter((item) => left.has(item) && item.state !== "cancelled"));
  }
}

/** Starts items that are registered by one call. */
function startGroup(group) {
  if (!group.length) return;
  for (const item of group) {
    Object.assign(item, { state: "waiting", error: "" });
    item.stop ??= new AbortController();
  }
  emitChange();
  const registering = register(group);
  registering.catch(() => undefined);
  for (const item of group) {
    item.registering = registering;
    withLock(item, () => runUpload(item));
  }
}

/** Files of a batch that could not be registered are registered again together. */
export function retry(item) {
  if (!["failed", "needs-file"].includes(item.state)) return;
  if (item.fileId || !item.batchKey) {
    set(item, { state: "waiting", error: "" });
    withLock(item, () => runUpload(item));
  } else startGroup(inBatch(item).filter((other) => !other.fileId && other.state === "failed"));
}

/** Continues an upload whose bytes this browser no longer has with the file that the user has chosen again. A file that was
 *  changed since is uploaded as a new file: parts of two versions must not be joined. */
export async function chooseAgain(item, file) {
  if (file.size !== item.size || file.name !== item.name) {
    return set(item, { error: `This is not the same file. Choose ${item.name} with ${bytes(item.size)}.` });
  }
  if (item.fileId && file.lastModified !== item.lastModified) {
    const { fileId, batchKey, batchId } = item;
    Object.assign(item, { file, lastModified: file.lastModified });
    await forgetRegistration(item);
    await call("DELETE", `/api/v2/files/${fileId}`).catch(() => undefined);
    await completeBatch({ batchKey, batchId });
    return retry(item);
  }
  Object.assign(item, { file, lastModified: file.lastModified });
  stored.change(item.key, { file, lastModified: file.lastModified });
  return retry(item);
}

export const canCancel = (item) => ["waiting", "sending", "failed", "needs-file"].includes(item.state);

export async function cancel(item) {
  item.stop?.abort();
  set(item, { state: "cancelled", error: "" });
  await stored.remove(item.key);
  await item.registering?.catch(() => undefined);
  if (item.fileId) await call("DELETE", `/api/v2/files/${item.fileId}`).catch((error) => error.status !== 404 && Promise.reject(error));
  await completeBatch(item);
}

/** Removes finished and cancelled uploads from the list. */
export function clear() {
  items.splice(0, items.length, ...items.filter((item) => !["done", "cancelled"].includes(item.state)));
  emitChange();
}

/** Continues stored uploads: after a reload, and when the tab that worked on them is closed. */
export async function resumeStored() {
  const records = await stored.all();
  const isOld = (record) => record.keptAt < Date.now() - STORED_MS_MAX;
  for (const record of records.filter(isOld)) stored.remove(record.key);
  const own = records.filter((record) => record.owner === owner() && !isOld(record));
  own.sort((a, b) => (a.batchKey ?? "").localeCompare(b.batchKey ?? "") || a.at - b.at);
  const found = own.filter((record) => !items.some((item) => item.key === record.key));
  const added = found.map((record) => ({ ...record, state: "other-tab", sent: 0, status: "", error: "" }));
  items.push(...added);
  emitChange();
  const registrations = new Map();
  for (const item of added) {
    withLock(item, async () => {
      const record = await stored.find(item.key);
      if (!record) return drop(item);
      Object.assign(item, record);
      if (record.isConfirmed) {
        set(item, { state: "processing", sent: item.size });
        return finish(item);
      }
      if (record.refusal) return set(item, { state: "failed", error: record.refusal, isTemporary: false });
      if (!item.fileId && item.batchKey) {
        // The answer to the first registration was lost: the same files are registered again, by one call.
        const isWanted = (other) => other.state !== "cancelled" && (other.fileId || !other.refusal);
        if (!registrations.has(item.batchKey)) registrations.set(item.batchKey, register(inBatch(item).filter(isWanted)));
        item.registering = registrations.get(item.batchKey);
        item.registering.catch(() => undefined);
      }
      return runUpload(item);
    });
  }
}

function drop(item) {
  items.splice(items.indexOf(item), 1);
  emitChange();
}

/** Stops all uploads of this tab. The stored ones continue when the user signs in again. */
export function stopAll() {
  for (const item of items) item.stop?.abort();
  items.length = 0;
}

function setStatus(fileId, status, why = "") {
  const item = items.find((other) => other.fileId === fileId && other.state === "processing");
  if (!item || item.status === status) return;
  set(item, { status, why, state: isFinal(status) ? "done" : "processing" });
  announceEnd();
}

/** Announces the end of all uploads to screen readers once, not the end of each. */
function announceEnd() {
  if (items.some((item) => ["waiting", "sending", "confirming", "processing"].includes(item.state))) return;
  const ready = items.filter((item) => item.status === "ready").length;
  const others = items.filter((item) => ["failed", "quarantined"].includes(item.status) || item.state === "failed").length;
  announce(`All uploads are finished: ${plural(ready, "file")} ready${others ? `, ${plural(others, "file")} failed` : ""}.`);
}

let polledAt = 0;
let pollMs = POLL_MS;
let timer = 0;
let isPolling = false;
/** Where the next poll of single files starts in their list. */
let offset = 0;

/** One call for a batch whose files are all sent. Before that, the answer would contain new upload URLs for the others. */
async function pollBatch(batchId, members) {
  const { files } = await get(`/api/v2/batches/${batchId}`, { signal: AbortSignal.timeout(POLL_MS_MAX) });
  const statuses = new Map(files.map((file) => [file.fileId, file.status]));
  for (const item of members) {
    if (statuses.has(item.fileId)) setStatus(item.fileId, statuses.get(item.fileId));
    else item.isSingle = true;
  }
}

async function pollFile(item) {
  try {
    const file = await get(`/api/v2/files/${item.fileId}`, { signal: AbortSignal.timeout(POLL_MS_MAX) });
    setStatus(item.fileId, file.status, file.error ?? "");
  } catch (error) {
    if ([404, 410].includes(error.status)) setStatus(item.fileId, "deleted");
  }
}

/** Fetches the status of confirmed files: all batches, and some of the single files each time. */
async function poll() {
  timer = 0;
  const processing = items.filter((item) => item.state === "processing");
  if (!processing.length || !current()) return;
  polledAt = Date.now();
  const unfinished = new Set(items.filter((item) => LEFT_TO_SEND.includes(item.state)).map((item) => item.batchKey));
  const batches = new Map();
  const single = [];
  for (const item of processing) {
    if (!item.batchId || item.isSingle || unfinished.has(item.batchKey)) single.push(item);
    else if (batches.has(item.batchId)) batches.get(item.batchId).push(item);
    else batches.set(item.batchId, [item]);
  }
  if (offset >= single.length) offset = 0;
  const next = single.slice(offset, offset + POLLED_FILES_MAX);
  offset += next.length;
  const before = processing.map((item) => item.status).join();
  isPolling = true;
  await Promise.allSettled([
    ...[...batches].map(([id, members]) => pollBatch(id, members).catch((error) => {
      if ([404, 410].includes(error.status)) members.forEach((item) => (item.isSingle = true));
    })),
    ...next.map(pollFile),
  ]);
  isPolling = false;
  const hasChanged = processing.map((item) => item.status).join() !== before;
  pollMs = hasChanged ? POLL_MS : Math.min(pollMs * 1.5, POLL_MS_MAX);
  schedulePoll();
}

function schedulePoll() {
  if (timer || isPolling) return;
  const count = items.filter((item) => item.state === "processing").length;
  if (!count) return;
  const ms = Math.min(POLL_MS_MAX, Math.max(pollMs, count * POLL_MS_PER_FILE));
  timer = setTimeout(poll, Math.max(100, polledAt + ms - Date.now()));
}

/** Polls soon again: the pause had grown for files that did not change. */
function pollSoon() {
  pollMs = POLL_MS;
  clearTimeout(timer);
  timer = 0;
  schedulePoll();
}

onChange(schedulePoll);
addEventListener("online", () => items.filter((item) => item.state === "failed" && item.isTemporary).forEach(retry));
onNotification((notification) => {
  const status = { "file-ready": "ready", "file-failed": "failed", "file-quarantined": "quarantined" }[notification.kind];
  if (status) setStatus(notification.fileId, status, status === "ready" ? "" : notification.message);
});
