// The bytes of one upload on their way: whole or in parts side by side, tried again when the line breaks. XHR and not
// fetch, because only XHR tells how much has gone out.

import { Cancelled, insist, mayPass, pause, post } from "./api.js";

const SIDE_BY_SIDE = 3;
const ATTEMPTS_MAX = 5;
const URL_MS = 120_000;
/** Headers a browser sets by itself and forbids to set. */
const OWN_HEADERS = ["content-length", "host"];

/** A browser says of a broken line and of a store that does not allow this page the same: nothing. */
function whyBroken(url) {
  const { origin } = new URL(url, location.href);
  if (origin === location.origin) return "The connection broke.";
  return `The store at ${origin} cannot be reached, or does not take uploads from this page: the bucket's CORS rules must allow PUT from ${location.origin}.`;
}

export class NotSent extends Error {
  constructor(status, code, detail) {
    super(detail || `The store answered ${status}.`);
    this.status = status;
    this.code = code;
  }
}

const waiting = [];
let running = 0;

/** At most three requests carry bytes at once, over all files. */
async function slot(signal) {
  if (signal.aborted) throw new Cancelled();
  if (running < SIDE_BY_SIDE) running += 1;
  else await turn(signal);
  return () => {
    const next = waiting.shift();
    if (next) next();
    else running -= 1;
  };
}

/** Until somebody hands a slot over; who is cancelled leaves the queue. */
function turn(signal) {
  return new Promise((resolve, reject) => {
    const go = () => {
      signal.removeEventListener("abort", leave);
      resolve();
    };
    const leave = () => {
      waiting.splice(waiting.indexOf(go), 1);
      reject(new Cancelled());
    };
    waiting.push(go);
    signal.addEventListener("abort", leave, { once: true });
  });
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
    xhr.onerror = xhr.ontimeout = () => reject(new NotSent(0, "", whyBroken(url)));
    xhr.onabort = () => reject(new Cancelled());
    xhr.onloadend = () => signal.removeEventListener("abort", abort);
    if (signal.aborted) return reject(new Cancelled());
    // A slice has no type of its own: the type is what the grant's headers say.
    xhr.send(blob);
  });
}

async function sendStubbornly(url, headers, blob, signal, sent) {
  for (let attempt = 1; ; attempt += 1) {
    const free = await slot(signal);
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

/** Sends everything the grant asks for. `progress(bytes)` hears how many are there in all, `arrived()` of each part. */
async function deliver(grant, file, signal, progress, arrived) {
  if (grant.uploadUrl) {
    return sendStubbornly(grant.uploadUrl, grant.headers, file.slice(0, file.size), signal, progress);
  }
  if (!grant.multipart) return undefined;
  const { partSize, parts } = grant.multipart;
  const there = new Map(parts.map((part) => [part.number, part.uploaded ? part.size : 0]));
  const tell = () => progress([...there.values()].reduce((all, size) => all + size, 0));
  tell();
  // Where one part fails the others are called back, and nothing of them is on its way when this ends.
  const stop = new AbortController();
  const relay = () => stop.abort();
  signal.addEventListener("abort", relay);
  if (signal.aborted) relay();
  let failed = null;
  await Promise.all(parts.filter((part) => !part.uploaded).map((part) => {
    const from = (part.number - 1) * partSize;
    const sent = (size) => {
      there.set(part.number, size);
      tell();
    };
    return sendStubbornly(part.url, {}, file.slice(from, from + part.size), stop.signal, sent).then(arrived, (error) => {
      failed ??= error;
      stop.abort();
    });
  }));
  signal.removeEventListener("abort", relay);
  if (signal.aborted) throw new Cancelled();
  if (failed) throw failed;
  return undefined;
}

/** As `deliver`; a URL that has died meanwhile is replaced, and bytes that are there already count as sent. */
export async function transfer(grant, fileId, file, signal, progress) {
  let mayRenew = true;
  let overtaken = 0;
  while (grant) {
    try {
      return await deliver(grant, file, signal, progress, () => (mayRenew = true));
    } catch (error) {
      if (error.code === "object_exists" || error.status === 412) return undefined;
      if (error.code === "superseded" && overtaken < ATTEMPTS_MAX) {
        // Another sending of the same file came between: whether that one arrives is not known yet.
        overtaken += 1;
        await pause(500 * 2 ** overtaken, signal);
      } else if (error.status === 403 && mayRenew) {
        mayRenew = false;
      } else {
        throw error;
      }
    }
    grant = await freshGrant(fileId, signal);
  }
  return undefined;
}

/** A grant for what is announced already; null where the server has the file. */
export async function freshGrant(fileId, signal, waits) {
  try {
    return await insist(() => post(`/api/v2/files/${fileId}/url`), { forMs: URL_MS, signal, waits });
  } catch (error) {
    if (error.code === "already_confirmed") return null;
    throw error;
  }
}
