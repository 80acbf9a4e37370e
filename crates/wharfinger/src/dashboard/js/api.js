// One call of the API: the token goes with it, and what goes wrong comes back as words.

import { current, signOut } from "./session.js";

let skewMs = 0;
let onSignedOut = () => {};

/** The server's time: the clock of a phone may say anything. */
export const now = () => Date.now() + skewMs;
export const whenSignedOut = (heard) => (onSignedOut = heard);

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? "";
    this.problem = problem;
  }
}

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
  const refused = new Refused(response.status, await problemOf(response));
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

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { body, ...options });
