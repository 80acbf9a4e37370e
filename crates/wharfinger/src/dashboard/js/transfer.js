// The bytes of one upload on their way: whole or in parts side by side, tried again when the line breaks. XHR and not
// fetch, because only XHR tells how much has gone out.

import { post } from "./api.js";

const SIDE_BY_SIDE = 3;
const ATTEMPTS_MAX = 5;
/** Headers a browser sets by itself and forbids to set. */
const OWN_HEADERS = ["content-length", "host"];

export class Cancelled extends Error {}

export class NotSent extends Error {
  constructor(status, code, detail) {
    super(detail || (status ? `The store answered ${status}.` : "The connection broke."));
    this.status = status;
    this.code = code;
  }
}

const waiting = [];
let running = 0;

/** At most three requests carry bytes at once, over all files. */
async function slot() {
  if (running >= SIDE_BY_SIDE) await new Promise((go) => waiting.push(go));
  running += 1;
  return () => {
    running -= 1;
    waiting.shift()?.();
  };
}

function codeOf(text) {
  try {
    const problem = JSON.parse(text);
    return [problem.code ?? "", problem.detail ?? ""];
  } catch {
    return ["", ""];
  }
}

function send(url, headers, blob, signal, sent) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    const abort = () => xhr.abort();
    signal.addEventListener("abort", abort);
    xhr.open("PUT", url);
    for (const [name, value] of Object.entries(headers ?? {})) {
      if (!OWN_HEADERS.includes(name.toLowerCase())) xhr.setRequestHeader(name, value);
    }
    xhr.upload.onprogress = (event) => sent(event.loaded);
    xhr.onload = () => {
      if (xhr.status >= 200 && xhr.status < 300) return sent(blob.size), resolve();
      reject(new NotSent(xhr.status, ...codeOf(xhr.responseText)));
    };
    xhr.onerror = xhr.ontimeout = () => reject(new NotSent(0, "", ""));
    xhr.onabort = () => reject(new Cancelled());
    xhr.onloadend = () => signal.removeEventListener("abort", abort);
    if (signal.aborted) return reject(new Cancelled());
    // A slice has no type of its own: the type is what the grant's headers say.
    xhr.send(blob);
  });
}

const mayPass = (error) => error instanceof NotSent && (error.status === 0 || error.status === 408 || error.status === 429 || error.status >= 500);

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(new Cancelled())), { once: true });
  });
}

async function sendStubbornly(url, headers, blob, signal, sent) {
  for (let attempt = 1; ; attempt += 1) {
    const free = await slot();
    try {
      return await send(url, headers, blob, signal, sent);
    } catch (error) {
      sent(0);
      if (!mayPass(error) || attempt >= ATTEMPTS_MAX) throw error;
    } finally {
      free();
    }
    await pause(500 * 2 ** attempt, signal);
  }
}

/** Sends everything the grant asks for. `progress(bytes)` hears how many are there in all. */
async function deliver(grant, file, signal, progress) {
  if (grant.uploadUrl) {
    return sendStubbornly(grant.uploadUrl, grant.headers, file.slice(0, file.size), signal, progress);
  }
  const { partSize, parts } = grant.multipart;
  const there = new Map(parts.map((part) => [part.number, part.uploaded ? part.size : 0]));
  const tell = () => progress([...there.values()].reduce((all, size) => all + size, 0));
  tell();
  await Promise.all(parts.filter((part) => !part.uploaded).map((part) => {
    const from = (part.number - 1) * partSize;
    return sendStubbornly(part.url, {}, file.slice(from, from + part.size), signal, (size) => {
      there.set(part.number, size);
      tell();
    });
  }));
}

/** As `deliver`; a URL that has died meanwhile is replaced, and bytes that are there already count as sent. */
export async function transfer(grant, fileId, file, signal, progress) {
  for (let isFresh = false; ; isFresh = true) {
    try {
      return await deliver(grant, file, signal, progress);
    } catch (error) {
      if (["object_exists", "superseded"].includes(error.code) || error.status === 412) return;
      if (isFresh || error.status !== 403) throw error;
      grant = await post(`/api/v2/files/${fileId}/url`);
    }
  }
}
