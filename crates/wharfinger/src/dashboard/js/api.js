// One call of the API: the token goes with it, and what goes wrong comes back as words.

import { current, signOut } from "./session.js";

const PAUSE_MS_MAX = 30_000;

let skewMs = 0;
let onSignedOut = () => {};

/** The server's time: the clock of a phone may say anything. */
export const now = () => Date.now() + skewMs;
export const whenSignedOut = (heard) => (onSignedOut = heard);

export class Refused extends Error {
  constructor(status, problem, retryAfterMs = 0) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.retryAfterMs = retryAfterMs;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

export class Cancelled extends Error {}

export class Unreachable extends Error {
  constructor() {
    super("The server does not answer. Is it running, and are you on line?");
    this.code = "unreachable";
  }
}

function setClock(response) {
  const said = Date.parse(response.headers.get("date") ?? "");
  if (Number.isNaN(said)) return;
  const skew = said + 500 - Date.now();
  skewMs = Math.abs(skew) > 2_000 ? skew : 0;
}

/** `Retry-After` in milliseconds, of the two ways it may be said. */
function waitAskedFor(response) {
  const said = response.headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(said) ? Number(said) * 1_000 : Date.parse(said) - now();
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

/** The response itself, where it is a good one. */
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
  const refused = new Refused(response.status, await problemOf(response), waitAskedFor(response));
  if (response.status === 401 && session && current() === session) expire(refused.message);
  throw refused;
}

export function expire(why) {
  const isOver = (current()?.expiresAt ?? 0) <= now();
  signOut(isOver ? "Your token is over. Sign in with a new one." : `The server does not accept your token: ${why}.`);
  onSignedOut();
}

export async function call(method, path, options) {
  const response = await request(method, path, options);
  if (response.status === 204) return null;
  return response.json();
}

/** Whether the same may well do some time later. */
export const mayPass = (error) => error.code === "unreachable" || error.status === 0 || [408, 429].includes(error.status) || error.status >= 500;

/** Waits, but not beyond the moment the line is back; throws where it is cancelled. */
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

/** Tries again what may pass, for as long as `forMs` and whoever began it is here; `waits(error)` hears of it. */
export async function insist(attempt, { forMs, signal, waits = () => {} }) {
  const asker = current();
  const end = Date.now() + forMs;
  for (let tries = 1; ; tries += 1) {
    try {
      return await attempt();
    } catch (error) {
      const ms = Math.max(error.retryAfterMs ?? 0, Math.min(PAUSE_MS_MAX, 500 * 2 ** tries) * (0.75 + Math.random() / 2));
      if (!mayPass(error) || current() !== asker || Date.now() + ms > end) throw error;
      waits(error);
      await pause(ms, signal);
      if (current() !== asker) throw error;
    }
  }
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { body, ...options });
