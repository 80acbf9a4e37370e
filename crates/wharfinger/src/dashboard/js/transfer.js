// Sends the bytes of one upload, in one request or in parallel parts, and retries when the connection breaks. It uses XHR
// because fetch does not report the progress of an upload.

import { Cancelled, withRetries, isTemporary, pause, post } from "./api.js";

const REQUESTS_MAX = 3;
const ATTEMPTS_MAX = 5;
const NEW_URL_MS = 120_000;
/** Headers that the browser sets itself and does not let a page set. */
const FORBIDDEN_HEADERS = ["content-length", "host"];

/** A browser reports a broken connection and a missing CORS rule in the same way, so the text names both. */
function connectionError(url) {
  const { origin } = new URL(url, location.href);
  if (origin === location.origin) return "The connection to the server broke.";
  return `Cannot send to the store at ${origin}. Is it running? Do the CORS rules of the bucket allow PUT from ${location.origin}?`;
}

export class UploadError extends Error {
  constructor(status, code, detail) {
    super(detail || `The store answered with status ${status}.`);
    this.status = status;
    this.code = code;
  }
}

const waiting = [];
let running = 0;

/** Waits until fewer than REQUESTS_MAX requests of all uploads are running. Returns the function that frees the slot. */
async function acquireSlot(signal) {
  if (signal.aborted) throw new Cancelled();
  if (running < REQUESTS_MAX) running += 1;
  else await waitForSlot(signal);
  return () => {
    const next = waiting.shift();
    if (next) next();
    else running -= 1;
  };
}

/** Waits until a finished request hands its slot over. A cancelled upload leaves the queue. */
function waitForSlot(signal) {
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

function send(url, headers, blob, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    const abort = () => xhr.abort();
    signal.addEventListener("abort", abort);
    xhr.open("PUT", url);
    for (const [name, value] of Object.entries(headers ?? {})) {
      if (!FORBIDDEN_HEADERS.includes(name.toLowerCase())) xhr.setRequestHeader(name, value);
    }
    xhr.upload.onprogress = (event) => onProgress(event.loaded);
    xhr.onload = () => {
      if (xhr.status >= 200 && xhr.status < 300) return onProgress(blob.size), resolve();
      reject(new UploadError(xhr.status, ...codeOf(xhr.responseText)));
    };
    xhr.onerror = xhr.ontimeout = () => reject(new UploadError(0, "", connectionError(url)));
    xhr.onabort = () => reject(new Cancelled());
    xhr.onloadend = () => signal.removeEventListener("abort", abort);
    if (signal.aborted) return reject(new Cancelled());
    // A slice has no content type: the type comes from the headers of the grant.
    xhr.send(blob);
  });
}

async function sendWithRetries(url, headers, blob, signal, onProgress) {
  for (let attempt = 1; ; attempt += 1) {
    const free = await acquireSlot(signal);
    try {
      return await send(url, headers, blob, signal, onProgress);
    } catch (error) {
      onProgress(0);
      if (!isTemporary(error) || attempt >= ATTEMPTS_MAX) throw error;
    } finally {
      free();
    }
    await pause(500 * 2 ** attempt, signal);
  }
}

/** Sends all missing bytes. `onProgress(bytes)` gets the total of sent bytes, `onPart()` is called after each part. */
async function sendAll(grant, file, signal, onProgress, onPart) {
  if (grant.uploadUrl) {
    return sendWithRetries(grant.uploadUrl, grant.headers, file.slice(0, file.size), signal, onProgress);
  }
  if (!grant.multipart) return undefined;
  const { partSize, parts } = grant.multipart;
  const sentBytes = new Map(parts.map((part) => [part.number, part.uploaded ? part.size : 0]));
  const report = () => onProgress([...sentBytes.values()].reduce((all, size) => all + size, 0));
  report();
  // If one part fails, the others are cancelled: no request is running when this function returns.
  const stop = new AbortController();
  const relay = () => stop.abort();
  signal.addEventListener("abort", relay);
  if (signal.aborted) relay();
  let failed = null;
  await Promise.all(parts.filter((part) => !part.uploaded).map((part) => {
    const from = (part.number - 1) * partSize;
    const onPartProgress = (size) => {
      sentBytes.set(part.number, size);
      report();
    };
    return sendWithRetries(part.url, {}, file.slice(from, from + part.size), stop.signal, onPartProgress).then(onPart, (error) => {
      failed ??= error;
      stop.abort();
    });
  }));
  signal.removeEventListener("abort", relay);
  if (signal.aborted) throw new Cancelled();
  if (failed) throw failed;
  return undefined;
}

/** Like `sendAll`. An expired URL is replaced, and bytes that are already in the store count as sent. */
export async function transfer(grant, fileId, file, signal, onProgress) {
  let mayRenewUrl = true;
  let supersededCount = 0;
  while (grant) {
    try {
      return await sendAll(grant, file, signal, onProgress, () => (mayRenewUrl = true));
    } catch (error) {
      if (error.code === "object_exists" || error.status === 412) return undefined;
      if (error.code === "superseded" && supersededCount < ATTEMPTS_MAX) {
        // A newer request for the same file took over. It is not known yet whether that one succeeds.
        supersededCount += 1;
        await pause(500 * 2 ** supersededCount, signal);
      } else if (error.status === 403 && mayRenewUrl) {
        mayRenewUrl = false;
      } else {
        throw error;
      }
    }
    grant = await freshGrant(fileId, signal);
  }
  return undefined;
}

/** A new upload URL for a registered file; null if the file is already confirmed. */
export async function freshGrant(fileId, signal, onRetry) {
  try {
    return await withRetries(() => post(`/api/v2/files/${fileId}/url`), { forMs: NEW_URL_MS, signal, onRetry });
  } catch (error) {
    if (error.code === "already_confirmed") return null;
    throw error;
  }
}
