// Uploads from choosing to ready: announced (several as one batch), sent, confirmed, followed; taken up again after a
// reload. One tab at a time works on an item; the others see that it does.

import { call, get, post } from "./api.js";
import { onNotice, tell, watch } from "./live.js";
import { current } from "./session.js";
import * as shelf from "./shelf.js";
import { Cancelled, transfer } from "./transfer.js";
import { say } from "./toasts.js";
import { bytes, isEnd, plural } from "./words.js";

const FOLLOW_MS = 1_500;
const BATCH_FILES_MAX = 5_000;

/** In the order they were chosen. State: elsewhere, waiting, sending, confirming, following, done, failed, needs-file. */
export const items = [];

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const owner = () => `${current()?.tenant}/${current()?.user}`;
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
    // Some of them were cancelled since the first attempt: it is another batch by now.
    const batchKey = newKey();
    for (const item of group) if (item.batchKey) item.batchKey = batchKey;
    await Promise.all(group.map((item) => shelf.change(item.key, { batchKey: item.batchKey })));
    await registerOnce(group);
  }
}

async function registerOnce(group) {
  const [first] = group;
  const headers = { "idempotency-key": `page-${first.batchKey ?? first.key}` };
  const isBatch = first.batchKey !== null;
  const answer = isBatch
    ? await post("/api/v2/batches", { files: group.map(announced) }, { headers })
    : await post("/api/v2/files/init", announced(first), { headers });
  const grants = isBatch ? answer.files : [answer];
  await Promise.all(group.map((item, at) => {
    item.grant = grants[at];
    item.fileId = grants[at].fileId;
    item.batchId = answer.batchId ?? null;
    return shelf.change(item.key, { fileId: item.fileId, batchId: item.batchId });
  }));
}

/** A grant to send by; null where the server has the file already. */
async function grantFor(item) {
  if (item.grant) return item.grant;
  try {
    return await post(`/api/v2/files/${item.fileId}/url`);
  } catch (error) {
    if (error.code === "already_confirmed") return null;
    throw error;
  }
}

async function confirm(item) {
  set(item, { state: "confirming", sent: item.size });
  const { status } = await post(`/api/v2/files/${item.fileId}/confirm`);
  set(item, { state: isEnd(status) ? "done" : "following", status });
}

/** A batch is complete when nothing of it is left to send; what was cancelled is not waited for. */
async function settle(item) {
  if (!item.batchKey) return shelf.remove(item.key);
  await shelf.change(item.key, { file: null, isConfirmed: true });
  const all = inBatch(item);
  if (!all.every((other) => ["following", "done", "cancelled"].includes(other.state))) return undefined;
  await post(`/api/v2/batches/${item.batchId}/complete`).catch(() => undefined);
  return Promise.all(all.map((other) => shelf.remove(other.key)));
}

async function carry(item) {
  item.stop = new AbortController();
  try {
    set(item, { state: "waiting", error: "" });
    if (!item.fileId) await (item.registering ?? register([item]));
    const grant = await grantFor(item);
    delete item.grant;
    if (item.stop.signal.aborted) throw new Cancelled();
    if (grant?.uploadUrl || grant?.multipart) {
      if (!(await shelf.isReadable(item.file))) return set(item, { state: "needs-file" });
      set(item, { state: "sending" });
      await transfer(grant, item.fileId, item.file, item.stop.signal, (sent) => set(item, { sent }));
    }
    await confirm(item);
    await settle(item);
  } catch (error) {
    if (error instanceof Cancelled) return set(item, { state: "cancelled" });
    if (["gone", "not_found"].includes(error.code)) forgetRegistration(item);
    set(item, { state: "failed", error: inWords(error) });
  }
  return undefined;
}

/** The next attempt announces it as a new file, by itself. */
function forgetRegistration(item) {
  const old = item.key;
  Object.assign(item, { key: newKey(), fileId: null, batchId: null, batchKey: null, grant: null, registering: null });
  shelf.remove(old).then(() => keep(item));
}

/** Holds the item for this tab while `work` lasts, where the browser can tell tabs apart. */
function hold(item, work) {
  if (!navigator.locks) return work();
  return navigator.locks.request(`wharfinger-upload-${item.key}`, work);
}

async function keep(item) {
  const { key, name, path, size, type, batchKey, at, fileId, batchId } = item;
  await shelf.put({ key, name, path, size, type, batchKey, at, fileId, batchId, owner: owner(), file: null, isConfirmed: false });
  shelf.change(key, { file: item.file });
}

/** `chosen`: [{ file, path }]. */
export async function add(chosen) {
  for (let from = 0; from < chosen.length; from += BATCH_FILES_MAX) {
    const slice = chosen.slice(from, from + BATCH_FILES_MAX);
    const batchKey = slice.length > 1 ? newKey() : null;
    const group = slice.map(({ file, path }, at) => ({
      key: newKey(), name: file.name, path: path === file.name ? "" : path ?? "", size: file.size, type: file.type, file, batchKey, at,
      fileId: null, batchId: null, state: "waiting", sent: 0, status: "", error: "",
    }));
    items.push(...group);
    tell();
    await Promise.all(group.map(keep));
    carryTogether(group);
  }
}

/** Carries items whose registration is one call. */
function carryTogether(group) {
  const registering = register(group);
  registering.catch(() => undefined);
  for (const item of group) {
    item.registering = registering;
    hold(item, () => carry(item).finally(() => delete item.registering));
  }
}

/** What could not be announced as a batch is announced again as one. */
export function retry(item) {
  if (!["failed", "needs-file"].includes(item.state)) return;
  if (item.fileId || !item.batchKey) hold(item, () => carry(item));
  else carryTogether(inBatch(item).filter((other) => !other.fileId && other.state === "failed"));
}

/** The same file once more, for an upload whose bytes this browser no longer has. */
export function giveFile(item, file) {
  if (file.size !== item.size || file.name !== item.name) {
    return set(item, { error: `That is not the same file: ${item.name} with ${bytes(item.size)} is needed.` });
  }
  item.file = file;
  shelf.change(item.key, { file });
  return retry(item);
}

export async function cancel(item) {
  item.stop?.abort();
  set(item, { state: "cancelled" });
  await shelf.remove(item.key);
  await item.registering?.catch(() => undefined);
  if (item.fileId) await call("DELETE", `/api/v2/files/${item.fileId}`).catch((error) => error.status !== 404 && Promise.reject(error));
  const rest = inBatch(item);
  const isOver = rest.length && rest.every((other) => ["following", "done", "cancelled"].includes(other.state));
  if (isOver && item.batchId) {
    await post(`/api/v2/batches/${item.batchId}/complete`).catch(() => undefined);
    await Promise.all(rest.map((other) => shelf.remove(other.key)));
  }
}

/** Takes away the rows that have come to their end. */
export function clear() {
  items.splice(0, items.length, ...items.filter((item) => !["done", "cancelled"].includes(item.state)));
  tell();
}

/** Takes up what was under way before: after a reload, or when the tab that was at it is closed. */
export async function takeUp() {
  const records = (await shelf.all()).filter((record) => record.owner === owner());
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
      if (!item.fileId && item.batchKey) {
        if (!lost.has(item.batchKey)) lost.set(item.batchKey, register(inBatch(item)));
        item.registering = lost.get(item.batchKey);
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
let timer = 0;

/** Asks how the confirmed ones stand: one call for a batch, one for each other file. */
async function follow() {
  timer = 0;
  const followed = items.filter((item) => item.state === "following");
  if (!followed.length || !current()) return;
  followedAt = Date.now();
  const batches = new Set(followed.map((item) => item.batchId).filter(Boolean));
  const alone = followed.filter((item) => !item.batchId).slice(0, 20);
  const asked = [
    ...[...batches].map(async (id) => (await get(`/api/v2/batches/${id}`)).files.forEach((file) => learn(file.fileId, file.status))),
    ...alone.map(async (item) => {
      const file = await get(`/api/v2/files/${item.fileId}`);
      learn(item.fileId, file.status, file.error ?? "");
    }),
  ];
  await Promise.allSettled(asked);
  plan();
}

function plan() {
  if (timer || !items.some((item) => item.state === "following")) return;
  timer = setTimeout(follow, Math.max(100, followedAt + FOLLOW_MS - Date.now()));
}

watch(plan);
onNotice((notice) => {
  const status = { "file-ready": "ready", "file-failed": "failed", "file-quarantined": "quarantined" }[notice.kind];
  if (status) learn(notice.fileId, status, status === "ready" ? "" : notice.message);
});
