// Calls the API with the user's token. Errors come back with a text for people.

import { current, readToken, signOut } from "./session.js";

const PAUSE_MS_MAX = 30_000;

let skewMs = 0;
let signedOut = () => {};

/** The server's time: the clock of this device may be wrong. */
export const now = () => Date.now() + skewMs;
export const onSignOut = (handler) => (signedOut = handler);

export class ApiError extends Error {
  constructor(status, problem, retryAfterMs = 0) {
    super(problem.detail || problem.title || `The server answered with status ${status}.`);
    this.status = status;
    this.retryAfterMs = retryAfterMs;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

export class Cancelled extends Error {}

export class Unreachable extends Error {
  constructor() {
    super("The server does not answer. Is it running? Is this device online?");
    this.code = "unreachable";
  }
}

function setClock(response) {
  const serverTime = Date.parse(response.headers.get("date") ?? "");
  if (Number.isNaN(serverTime)) return;
  // The header has whole seconds: on average the server's time is half a second later.
  const skew = serverTime + 500 - Date.now();
  skewMs = Math.abs(skew) > 2_000 ? skew : 0;
}

/** `Retry-After` in milliseconds: the header has seconds or a date. */
function retryAfterMs(response) {
  const header = response.headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - now();
  return Number.isNaN(ms) ? 0 : Math.max(0, ms);
}

async function problemOf(response) {
  const text = await response.text().catch(() => "");
  try {
    return JSON.parse(text);
  } catch {
    return { detail: text.slice(0, 200) };
  }
}

/** Returns the response of a successful call; throws for any other. */
export async function request(method, path, { body, headers = {}, signal, isPublic = false } = {}) {
  const session = current();
  const sent = { accept: "application/json", ...headers };
  if (session && !isPublic) sent.authorization = `Bearer ${session.token}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers: sent, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable();
  }
  setClock(response);
  if (response.ok) return response;
  const error = new ApiError(response.status, await problemOf(response), retryAfterMs(response));
  if (response.status === 401 && session && !isPublic && current() === session) expire(error.message);
  throw error;
}

const rejected = (why) => (/has expired/.test(why) ? "Your token has expired. Sign in with a new one." : `The server rejected your token: ${why.replace(/\.$/, "")}.`);

export function expire(why) {
  const isExpired = (current()?.expiresAt ?? 0) <= now();
  signOut(rejected(isExpired ? "it has expired" : why));
  signedOut();
}

/** Asks the server whose token this is; throws an error for people if it is nobody's. */
export async function identify(given) {
  const token = readToken(given);
  try {
    const response = await request("GET", "/api/v2/session", { headers: { authorization: `Bearer ${token}` }, isPublic: true });
    const { tenant, user, role, expiresAt } = await response.json();
    return { token, tenant, user, role, expiresAt: expiresAt === null ? Infinity : Date.parse(expiresAt) };
  } catch (error) {
    throw error.status === 401 ? new Error(rejected(error.message)) : error;
  }
}

export async function call(method, path, options) {
  const response = await request(method, path, options);
  if (response.status === 204) return null;
  return response.json();
}

/** Whether the same call may succeed later. */
export const isTemporary = (error) => error.code === "unreachable" || error.status === 0 || [408, 429].includes(error.status) || error.status >= 500;

/** Waits for `ms`, or until the device is online again; throws if it is cancelled. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle) => () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      signal?.removeEventListener("abort", stop);
      settle();
    };
    const done = end(resolve);
    const stop = end(() => reject(new Cancelled()));
    const timer = setTimeout(done, ms);
    addEventListener("online", done);
    signal?.addEventListener("abort", stop);
    if (signal?.aborted) stop();
  });
}

/** Retries temporary errors for at most `forMs` and while the same user is signed in; `onRetry(error)` before each. */
export async function withRetries(attempt, { forMs, signal, onRetry = () => {} }) {
  const session = current();
  const end = Date.now() + forMs;
  for (let tries = 1; ; tries += 1) {
    try {
      return await attempt();
    } catch (error) {
      const ms = Math.max(error.retryAfterMs ?? 0, Math.min(PAUSE_MS_MAX, 500 * 2 ** tries) * (0.75 + Math.random() / 2));
      if (!isTemporary(error) || current() !== session || Date.now() + ms > end) throw error;
      onRetry(error);
      await pause(ms, signal);
      if (current() !== session) throw error;
    }
  }
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { body, ...options });
