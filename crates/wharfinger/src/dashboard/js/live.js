// What the page knows of the world: what the stream tells, and the lists that are asked for again when it tells of a
// change that concerns them. Views read it and are drawn again when it changes.

import { get, now } from "./api.js";
import { isKeeper, isOperator, current } from "./session.js";
import { listen } from "./stream.js";

const REFETCH_MS_MIN = 1_000;
/** All of a large place's tenants are much to ask for. */
const TENANTS_MS_MIN = 5_000;
const LOOK_AGAIN_MS = 30_000;
const NOTICES_MAX = 50;

const empty = () => ({
  line: "connecting", isCut: false, tenant: "", dashboard: null, trend: null, quota: null, cleanups: null, sweeps: null, spool: null,
  trouble: "", stuck: null, letters: null, orphans: null, pendingCleanups: null, notices: null, tenants: null, readiness: null, errors: {},
});

export const live = empty();

const watchers = new Set();
const noticed = new Set();
let close = () => {};
let timer = 0;

export function watch(changed) {
  watchers.add(changed);
  return () => watchers.delete(changed);
}

/** Hears of each notification as it comes. */
export function onNotice(heard) {
  noticed.add(heard);
  return () => noticed.delete(heard);
}

export const tell = () => watchers.forEach((changed) => changed());

/** What narrows a call to the tenant an operator looks at. */
export const ofTenant = (before) => (live.tenant ? `${before}tenant=${encodeURIComponent(live.tenant)}` : "");

/** Something that is fetched at most once a second, or once in `pauseMs`, however often it is asked for. */
function list(name, path, { read = (answer) => answer, mayAsk = () => true, pauseMs = REFETCH_MS_MIN } = {}) {
  let lastAt = 0;
  let waiting = null;
  const fetchNow = async () => {
    waiting = null;
    lastAt = Date.now();
    const asker = current();
    if (!asker || !mayAsk()) return;
    // Where the path names a tenant, an answer that comes after another was chosen is about the wrong one.
    const { tenant } = live;
    const isStale = () => current() !== asker || (typeof path === "function" && live.tenant !== tenant);
    try {
      const answer = await get(typeof path === "function" ? path() : path);
      if (isStale()) return;
      live[name] = read(answer);
      delete live.errors[name];
    } catch (error) {
      if (isStale()) return;
      live.errors[name] = error.message;
    }
    tell();
  };
  return () => {
    waiting ??= new Promise((resolve) => {
      setTimeout(() => resolve(fetchNow()), Math.max(0, lastAt + pauseMs - Date.now()));
    });
    return waiting;
  };
}

export const refetch = {
  stuck: list("stuck", () => `/api/v2/uploads/stuck?limit=100${ofTenant("&")}`),
  letters: list("letters", () => `/api/v2/dlq?limit=100${ofTenant("&")}`),
  orphans: list("orphans", () => `/api/v2/uploads/orphans${ofTenant("?")}`),
  cleanups: list("cleanups", () => `/api/v1/maintenance/cleanup/status${ofTenant("?")}`, { mayAsk: isKeeper }),
  pendingCleanups: list("pendingCleanups", () => `/api/v1/maintenance/cleanup/pending?limit=100${ofTenant("&")}`, { mayAsk: isKeeper }),
  notices: list("notices", `/api/v2/notifications?limit=${NOTICES_MAX}`, { read: (answer) => answer.notifications }),
  tenants: list("tenants", "/api/v2/tenants?limit=1000", { mayAsk: isOperator, pauseMs: TENANTS_MS_MIN }),
  sweeps: list("sweeps", "/api/v2/maintenance/sweeps", { mayAsk: isOperator }),
  spool: list("spool", "/api/v2/maintenance/spool", { mayAsk: isOperator }),
  dashboard: list("dashboard", () => `/api/v2/uploads/dashboard${ofTenant("?")}`),
  trend: list("trend", () => `/api/v2/uploads/trend${ofTenant("?")}`),
  quota: list("quota", "/api/v2/quota"),
};

/** What is known of one tenant's quota already need not be asked for. */
export function setQuota(fresh) {
  if (!live.tenants) return;
  live.tenants.tenants = live.tenants.tenants.map((old) => (old.tenant === fresh.tenant ? fresh : old));
}

/** Where no stream comes through (a proxy may hold it back) the figures are asked for now and then. */
function askWithoutStream() {
  refetch.dashboard();
  refetch.stuck();
  refetch.trend();
  refetch.quota();
  refetch.letters();
  refetch.cleanups();
  refetch.pendingCleanups();
  refetch.sweeps();
  refetch.spool();
}

/** What could not be had the last time. */
function askAgain() {
  for (const name of Object.keys(live.errors)) refetch[name]?.();
}

async function lookAtReadiness() {
  try {
    live.readiness = await get("/readyz", { isPublic: true });
  } catch (error) {
    if (error.problem?.backends) live.readiness = error.problem;
  }
  tell();
}

const hears = {
  dashboard(fresh) {
    const old = live.dashboard;
    live.trouble = "";
    live.dashboard = fresh;
    if (fresh.stuckFiles !== old?.stuckFiles || fresh.stuckFiles > 0) refetch.stuck();
    // One that was redriven may be back before anybody sees it gone: the same depth, and another letter.
    if (fresh.dlqDepth !== old?.dlqDepth || fresh.dlqDepth > 0) refetch.letters();
    if (isOperator()) refetch.tenants();
  },
  trend: (fresh) => (live.trend = fresh),
  quota(fresh) {
    live.quota = fresh;
    setQuota(fresh);
  },
  cleanups(fresh) {
    live.cleanups = fresh;
    refetch.pendingCleanups();
  },
  sweeps(fresh) {
    live.sweeps = fresh;
    refetch.orphans();
  },
  spool: (fresh) => (live.spool = fresh),
  trouble: ({ detail }) => (live.trouble = detail),
  notification(notice) {
    live.notices = [notice, ...(live.notices ?? []).filter((old) => old.id !== notice.id)].slice(0, NOTICES_MAX);
    noticed.forEach((heard) => heard(notice));
  },
};

function connect() {
  close = listen(
    `/api/v2/stream${ofTenant("?")}`,
    (name, data) => {
      delete live.errors[name];
      hears[name]?.(data);
      tell();
    },
    (line) => {
      if (line === "live" && live.isCut) {
        // Notices that came while nobody listened are not sent again.
        refetch.notices();
        refetch.stuck();
        refetch.letters();
        askAgain();
      }
      live.line = line;
      if (line === "live") live.isCut = false;
      if (line === "away") doWithout();
      tell();
    },
    doWithout,
  );
}

/** The line is lost until an event comes through, however often it is tried meanwhile. */
function doWithout() {
  live.isCut = true;
  askWithoutStream();
  tell();
}

export function begin() {
  Object.assign(live, empty());
  connect();
  const look = () => {
    if (live.isCut) askWithoutStream();
    askAgain();
    refetch.orphans();
    refetch.stuck();
    refetch.letters();
    if (isOperator()) refetch.tenants();
    lookAtReadiness();
  };
  refetch.notices();
  look();
  timer = setInterval(look, LOOK_AGAIN_MS);
}

export function end() {
  close();
  clearInterval(timer);
  Object.assign(live, empty());
}

/** An operator looks at one tenant, or at all of them ("") again. */
export function lookAt(tenant) {
  close();
  const unknown = { dashboard: null, trend: null, quota: null, stuck: null, letters: null, orphans: null, cleanups: null, pendingCleanups: null };
  Object.assign(live, { tenant, ...unknown });
  for (const name of Object.keys(unknown)) delete live.errors[name];
  connect();
  refetch.orphans();
  tell();
}

export const ageOf = (text) => now() - Date.parse(text);
