// Uploads from choosing to ready: announced (several as one batch), sent, confirmed, followed; taken up again after a
// reload. One tab at a time works on an item; the others see that it does.

import { call, Cancelled, get, insist, mayPass, post } from "./api.js";
import { onNotice, tell, watch } from "./live.js";
import { current } from "./session.js";
import * as shelf from "./shelf.js";
import { freshGrant, transfer } from "./transfer.js";
import { say } from "./toasts.js";
import { bytes, isEnd, plural } from "./words.js";

const FOLLOW_MS = 1_500;
const FOLLOW_MS_MAX = 30_000;
/** For each that is followed: a batch of thousands is not asked after as often as one file. */
const FOLLOW_MS_EACH = 10;
const FOLLOWED_AT_ONCE = 20;
const ANNOUNCE_MS = 120_000;
/** The server may have to read a large object to its end before it can say that it is right. */
const CONFIRM_MS = 600_000;
const KEPT_MS = 7 * 24 * 3_600_000;
const BATCH_FILES_MAX = 5_000;

/** In the order they were chosen. State: elsewhere, waiting, sending, confirming, following, done, failed, needs-file. */
export const items = [];

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const owner = () => `${current()?.tenant}/${current()?.user}`;
const LEFT_TO_SEND = ["elsewhere", "waiting", "sending", "confirming", "failed", "needs-file"];
const inBatch = (item) => items.filter((other) => item.batchKey && other.batchKey === item.batchKey);

function set(item, changes) {
  Object.assign(item, changes);
  tell();
}

/** The error in words a person can act on. */
function inWords(error) {
  const { code, problem = {} } = error;
  if (code === "quota_exceeded" || code === "unconfirmed_limit") {
    const what = code === "quota_exceeded" ? "There is not enough room" : "Too much waits to be confirmed";
    return `${what}: ${bytes(problem.requested)} were asked for, ${bytes(problem.used)} of ${bytes(problem.limit)} are in use.`;
  }
  if (code === "gone" || code === "not_found") return "The server no longer waits for this upload. Try again to begin it anew.";
  return error.message;
}

const announced = (item) => ({
  fileName: item.name, size: item.size, ...(item.type ? { contentType: item.type } : {}), ...(item.path ? { metadata: { path: item.path } } : {}),
});

async function register(group) {
  try {
    await registerOnce(group);
  } catch (error) {
    if (error.code !== "idempotency_mismatch") throw error;
    // Some of them were cancelled since the first attempt: what is left to announce is another batch by now.
    const left = group.filter((item) => !item.fileId);
    const batchKey = newKey();
    for (const item of left) if (item.batchKey) item.batchKey = batchKey;
    await Promise.all(left.map((item) => shelf.change(item.key, { batchKey: item.batchKey })));
    await registerOnce(left);
  }
}

/** Says of each why nothing happens. */
const waitsFor = (group) => (error) => {
  for (const item of group) item.error = `${error.message} It is tried again.`;
  tell();
};

async function registerOnce(group) {
  const [first] = group;
  const headers = { "idempotency-key": `page-${first.batchKey ?? first.key}` };
  const isBatch = first.batchKey !== null;
  const body = isBatch ? { files: group.map(announced) } : announced(first);
  const answer = await insist(() => post(isBatch ? "/api/v2/batches" : "/api/v2/files/init", body, { headers }), {
    forMs: ANNOUNCE_MS, waits: waitsFor(group), signal: isBatch ? undefined : first.stop.signal,
  });
  const grants = isBatch ? answer.files : [answer];
  await Promise.all(group.map((item, at) => {
    item.grant = grants[at];
    item.fileId = grants[at].fileId;
    item.batchId = answer.batchId ?? null;
    return shelf.change(item.key, { fileId: item.fileId, batchId: item.batchId });
  }));
}

async function confirm(item) {
  set(item, { state: "confirming", sent: item.size, error: "" });
  const { status } = await insist(() => post(`/api/v2/files/${item.fileId}/confirm`), { forMs: CONFIRM_MS, signal: item.stop.signal, waits: waitsFor([item]) });
  set(item, { state: isEnd(status) ? "done" : "following", status, error: "" });
  followSoon();
}

/** A batch is complete when nothing of it is left to send; what was cancelled is not waited for. */
async function settle(item) {
  if (!item.batchKey) return shelf.remove(item.key);
  await shelf.change(item.key, { file: null, isConfirmed: true });
  return completeIfOver(item);
}

/** `batchKey` and `batchId` name the batch. */
async function completeIfOver({ batchKey, batchId }) {
  const rest = inBatch({ batchKey });
  if (!batchId || !rest.length || rest.some((other) => LEFT_TO_SEND.includes(other.state))) return;
  try {
    await insist(() => post(`/api/v2/batches/${batchId}/complete`), { forMs: CONFIRM_MS });
  } catch (error) {
    // What may pass is done by whoever takes these up again; what is final would be refused then, too.
    if (mayPass(error) || !current()) return;
  }
  await Promise.all(rest.map((other) => shelf.remove(other.key)));
}

async function carry(item) {
  if (item.state === "cancelled") return undefined;
  item.stop ??= new AbortController();
  const { signal } = item.stop;
  try {
    set(item, { state: "waiting", error: "" });
    shelf.change(item.key, { keptAt: Date.now(), refusal: "" });
    if (!item.fileId) await (item.registering ??= register([item]));
    const grant = item.grant ?? await freshGrant(item.fileId, signal, waitsFor([item]));
    delete item.grant;
    if (signal.aborted) throw new Cancelled();
    if (grant?.uploadUrl || grant?.multipart) {
      if (!(await shelf.isReadable(item.file))) return set(item, { state: "needs-file", error: "" });
      set(item, { state: "sending", error: "" });
      await transfer(grant, item.fileId, item.file, signal, (sent) => set(item, { sent }));
    }
    await confirm(item);
    await settle(item);
  } catch (error) {
    if (error instanceof Cancelled || signal.aborted) return set(item, { state: "cancelled", error: "" });
    if (["gone", "not_found"].includes(error.code)) await forgetRegistration(item);
    // What was refused is not begun again by a reload: somebody has to want it.
    if (!mayPass(error)) await shelf.change(item.key, { refusal: inWords(error) });
    set(item, { state: signal.aborted ? "cancelled" : "failed", error: inWords(error), isPassing: mayPass(error) });
  } finally {
    delete item.registering;
  }
  return undefined;
}

/** The next attempt announces it as a new file, by itself. */
function forgetRegistration(item) {
  const old = item.key;
  Object.assign(item, { key: newKey(), fileId: null, batchId: null, batchKey: null, grant: null, registering: null });
  return shelf.remove(old).then(() => keep(item));
}

/** Holds the item for this tab while `work` lasts, where the browser can tell tabs apart. */
function hold(item, work) {
  // Whoever waited for it may have signed out meanwhile.
  const begin = () => (items.includes(item) ? work() : undefined);
  if (!navigator.locks) return begin();
  return navigator.locks.request(`wharfinger-upload-${item.key}`, begin);
}

async function keep(item) {
  const { key, name, path, size, type, lastModified, batchKey, at, fileId, batchId } = item;
  const record = { key, name, path, size, type, lastModified, batchKey, at, fileId, batchId, owner: owner() };
  await shelf.put({ ...record, file: null, isConfirmed: false, keptAt: Date.now(), refusal: "" });
  shelf.change(key, { file: item.file });
}

/** `chosen`: [{ file, path }]. */
export async function add(chosen) {
  for (let from = 0; from < chosen.length; from += BATCH_FILES_MAX) {
    const slice = chosen.slice(from, from + BATCH_FILES_MAX);
    const batchKey = slice.length > 1 ? newKey() : null;
    const group = slice.map(({ file, path }, at) => ({
      key: newKey(), name: file.name, path: path === file.name ? "" : path ?? "", size: file.size, type: file.type,
      lastModified: file.lastModified, file, batchKey, at, fileId: null, batchId: null, state: "waiting", sent: 0, status: "", error: "",
    }));
    items.push(...group);
    tell();
    await Promise.all(group.map(keep));
    // Keeping the bytes takes a while, and some may have been cancelled meanwhile.
    const here = new Set(items);
    carryTogether(group.filter((item) => here.has(item) && item.state !== "cancelled"));
  }
}

/** Carries items whose registration is one call. */
function carryTogether(group) {
  if (!group.length) return;
  for (const item of group) {
    Object.assign(item, { state: "waiting", error: "" });
    item.stop ??= new AbortController();
  }
  tell();
  const registering = register(group);
  registering.catch(() => undefined);
  for (const item of group) {
    item.registering = registering;
    hold(item, () => carry(item));
  }
}

/** What could not be announced as a batch is announced again as one. */
export function retry(item) {
  if (!["failed", "needs-file"].includes(item.state)) return;
  if (item.fileId || !item.batchKey) {
    set(item, { state: "waiting", error: "" });
    hold(item, () => carry(item));
  } else carryTogether(inBatch(item).filter((other) => !other.fileId && other.state === "failed"));
}

/** The same file once more, for an upload whose bytes this browser no longer has. What was changed since is another
 *  file, and begun anew: parts of the two must never become one. */
export async function giveFile(item, file) {
  if (file.size !== item.size || file.name !== item.name) {
    return set(item, { error: `That is not the same file: ${item.name} with ${bytes(item.size)} is needed.` });
  }
  if (item.fileId && file.lastModified !== item.lastModified) {
    const { fileId, batchKey, batchId } = item;
    Object.assign(item, { file, lastModified: file.lastModified });
    await forgetRegistration(item);
    await call("DELETE", `/api/v2/files/${fileId}`).catch(() => undefined);
    await completeIfOver({ batchKey, batchId });
    return retry(item);
  }
  Object.assign(item, { file, lastModified: file.lastModified });
  shelf.change(item.key, { file, lastModified: file.lastModified });
  return retry(item);
}

export const canCancel = (item) => ["waiting", "sending", "failed", "needs-file"].includes(item.state);

export async function cancel(item) {
  item.stop?.abort();
  set(item, { state: "cancelled", error: "" });
  await shelf.remove(item.key);
  await item.registering?.catch(() => undefined);
  if (item.fileId) await call("DELETE", `/api/v2/files/${item.fileId}`).catch((error) => error.status !== 404 && Promise.reject(error));
  await completeIfOver(item);
}

/** Takes away the rows that have come to their end. */
export function clear() {
  items.splice(0, items.length, ...items.filter((item) => !["done", "cancelled"].includes(item.state)));
  tell();
}

/** Takes up what was under way before: after a reload, or when the tab that was at it is closed. */
export async function takeUp() {
  const kept = await shelf.all();
  const isOld = (record) => record.keptAt < Date.now() - KEPT_MS;
  for (const record of kept.filter(isOld)) shelf.remove(record.key);
  const records = kept.filter((record) => record.owner === owner() && !isOld(record));
  records.sort((a, b) => (a.batchKey ?? "").localeCompare(b.batchKey ?? "") || a.at - b.at);
  const found = records.filter((record) => !items.some((item) => item.key === record.key));
  const taken = found.map((record) => ({ ...record, state: "elsewhere", sent: 0, status: "", error: "" }));
  items.push(...taken);
  tell();
  const lost = new Map();
  for (const item of taken) {
    hold(item, async () => {
      const record = await shelf.find(item.key);
      if (!record) return drop(item);
      Object.assign(item, record);
      if (record.isConfirmed) {
        set(item, { state: "following", sent: item.size });
        return settle(item);
      }
      if (record.refusal) return set(item, { state: "failed", error: record.refusal, isPassing: false });
      if (!item.fileId && item.batchKey) {
        const isLost = (other) => other.state !== "cancelled" && (other.fileId || !other.refusal);
        if (!lost.has(item.batchKey)) lost.set(item.batchKey, register(inBatch(item).filter(isLost)));
        item.registering = lost.get(item.batchKey);
        item.registering.catch(() => undefined);
      }
      return carry(item);
    });
  }
}

function drop(item) {
  items.splice(items.indexOf(item), 1);
  tell();
}

export function forget() {
  for (const item of items) item.stop?.abort();
  items.length = 0;
}

function learn(fileId, status, why = "") {
  const item = items.find((other) => other.fileId === fileId && other.state === "following");
  if (!item || item.status === status) return;
  set(item, { status, why, state: isEnd(status) ? "done" : "following" });
  sayWhenAllAreDone();
}

/** Aloud once, and not for each of a thousand. */
function sayWhenAllAreDone() {
  if (items.some((item) => ["waiting", "sending", "confirming", "following"].includes(item.state))) return;
  const ready = items.filter((item) => item.status === "ready").length;
  const others = items.filter((item) => ["failed", "quarantined"].includes(item.status) || item.state === "failed").length;
  say(`All uploads are done: ${plural(ready, "file")} ready${others ? `, ${plural(others, "file")} not` : ""}.`);
}

let followedAt = 0;
let followMs = FOLLOW_MS;
let timer = 0;
let isAsking = false;
let turn = 0;

/** One call for a batch of which nothing is left to send: before, its answer would grant each of the rest anew. */
async function askBatch(batchId, members) {
  const { files } = await get(`/api/v2/batches/${batchId}`, { signal: AbortSignal.timeout(FOLLOW_MS_MAX) });
  const told = new Map(files.map((file) => [file.fileId, file.status]));
  for (const item of members) {
    if (told.has(item.fileId)) learn(item.fileId, told.get(item.fileId));
    else item.isAlone = true;
  }
}

async function askFile(item) {
  try {
    const file = await get(`/api/v2/files/${item.fileId}`, { signal: AbortSignal.timeout(FOLLOW_MS_MAX) });
    learn(item.fileId, file.status, file.error ?? "");
  } catch (error) {
    if ([404, 410].includes(error.status)) learn(item.fileId, "deleted");
  }
}

/** Asks how the confirmed ones stand, some at a time and each in its turn. */
async function follow() {
  timer = 0;
  const followed = items.filter((item) => item.state === "following");
  if (!followed.length || !current()) return;
  followedAt = Date.now();
  const unfinished = new Set(items.filter((item) => LEFT_TO_SEND.includes(item.state)).map((item) => item.batchKey));
  const batches = new Map();
  const alone = [];
  for (const item of followed) {
    if (!item.batchId || item.isAlone || unfinished.has(item.batchKey)) alone.push(item);
    else if (batches.has(item.batchId)) batches.get(item.batchId).push(item);
    else batches.set(item.batchId, [item]);
  }
  if (turn >= alone.length) turn = 0;
  const next = alone.slice(turn, turn + FOLLOWED_AT_ONCE);
  turn += next.length;
  const before = followed.map((item) => item.status).join();
  isAsking = true;
  await Promise.allSettled([
    ...[...batches].map(([id, members]) => askBatch(id, members).catch((error) => {
      if ([404, 410].includes(error.status)) members.forEach((item) => (item.isAlone = true));
    })),
    ...next.map(askFile),
  ]);
  isAsking = false;
  const hasChanged = followed.map((item) => item.status).join() !== before;
  followMs = hasChanged ? FOLLOW_MS : Math.min(followMs * 1.5, FOLLOW_MS_MAX);
  plan();
}

function plan() {
  if (timer || isAsking) return;
  const count = items.filter((item) => item.state === "following").length;
  if (!count) return;
  const ms = Math.min(FOLLOW_MS_MAX, Math.max(followMs, count * FOLLOW_MS_EACH));
  timer = setTimeout(follow, Math.max(100, followedAt + ms - Date.now()));
}

/** Something new is followed: what was asked in vain says nothing of it. */
function followSoon() {
  followMs = FOLLOW_MS;
  clearTimeout(timer);
  timer = 0;
  plan();
}

watch(plan);
addEventListener("online", () => items.filter((item) => item.state === "failed" && item.isPassing).forEach(retry));
onNotice((notice) => {
  const status = { "file-ready": "ready", "file-failed": "failed", "file-quarantined": "quarantined" }[notice.kind];
  if (status) learn(notice.fileId, status, status === "ready" ? "" : notice.message);
});
