// The data that the page shows: parts that the event stream sends, and lists that are fetched when the stream reports a
// change. Views read `live` and are drawn again when it changes.

import { get } from "./api.js";
import { isAdmin, isOperator, current } from "./session.js";
import { listen } from "./stream.js";

const REFETCH_MS_MIN = 1_000;
/** The list of all tenants can be large, so it is fetched less often. */
const TENANTS_MS_MIN = 5_000;
const POLL_MS = 30_000;
const NOTIFICATIONS_MAX = 50;

const empty = () => ({
  connection: "connecting", isDisconnected: false, tenant: "", dashboard: null, trend: null, quota: null, cleanups: null, sweeps: null, spool: null,
  serverError: "", stuck: null, deadLetters: null, orphans: null, pendingCleanups: null, notifications: null, tenants: null, keys: null, audit: null, readiness: null, errors: {},
});

export const live = empty();

const watchers = new Set();
const notificationWatchers = new Set();
let close = () => {};
let timer = 0;

/** Calls `watcher` after each change of `live` or of another state that is on the page. */
export function onChange(watcher) {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

/** Calls `watcher` with each notification as it arrives. */
export function onNotification(watcher) {
  notificationWatchers.add(watcher);
  return () => notificationWatchers.delete(watcher);
}

export const emitChange = () => watchers.forEach((watcher) => watcher());

/** The query parameter for the tenant that an operator has selected; empty for all tenants. */
export const tenantQuery = (separator) => (live.tenant ? `${separator}tenant=${encodeURIComponent(live.tenant)}` : "");

/** Returns a function that fetches `live[name]`, at most once in `pauseMs` however often it is called. */
function list(name, path, { read = (answer) => answer, isAllowed = () => true, pauseMs = REFETCH_MS_MIN } = {}) {
  let lastAt = 0;
  let waiting = null;
  const fetchNow = async () => {
    waiting = null;
    lastAt = Date.now();
    const session = current();
    if (!session || !isAllowed()) return;
    // The answer is dropped if another user or tenant was selected during the call.
    const { tenant } = live;
    const isStale = () => current() !== session || (typeof path === "function" && live.tenant !== tenant);
    try {
      const answer = await get(typeof path === "function" ? path() : path);
      if (isStale()) return;
      live[name] = read(answer);
      delete live.errors[name];
    } catch (error) {
      if (isStale()) return;
      live.errors[name] = error.message;
    }
    emitChange();
  };
  return () => {
    waiting ??= new Promise((resolve) => {
      setTimeout(() => resolve(fetchNow()), Math.max(0, lastAt + pauseMs - Date.now()));
    });
    return waiting;
  };
}

export const refetch = {
  stuck: list("stuck", () => `/api/v2/uploads/stuck?limit=100${tenantQuery("&")}`),
  deadLetters: list("deadLetters", () => `/api/v2/dlq?limit=100${tenantQuery("&")}`),
  orphans: list("orphans", () => `/api/v2/uploads/orphans${tenantQuery("?")}`),
  cleanups: list("cleanups", () => `/api/v1/maintenance/cleanup/status${tenantQuery("?")}`, { isAllowed: isAdmin }),
  pendingCleanups: list("pendingCleanups", () => `/api/v1/maintenance/cleanup/pending?limit=100${tenantQuery("&")}`, { isAllowed: isAdmin }),
  notifications: list("notifications", `/api/v2/notifications?limit=${NOTIFICATIONS_MAX}`, { read: (answer) => answer.notifications }),
  tenants: list("tenants", "/api/v2/tenants?limit=1000", { isAllowed: isOperator, pauseMs: TENANTS_MS_MIN }),
  keys: list("keys", "/api/v2/keys?limit=200", { isAllowed: isOperator }),
  audit: list("audit", "/api/v2/maintenance/audit?limit=50", { isAllowed: isAdmin }),
  sweeps: list("sweeps", "/api/v2/maintenance/sweeps", { isAllowed: isOperator }),
  spool: list("spool", "/api/v2/maintenance/spool", { isAllowed: isOperator }),
  dashboard: list("dashboard", () => `/api/v2/uploads/dashboard${tenantQuery("?")}`),
  trend: list("trend", () => `/api/v2/uploads/trend${tenantQuery("?")}`),
  quota: list("quota", "/api/v2/quota"),
};

/** Updates one tenant in the list of tenants without another call. */
export function setQuota(fresh) {
  if (!live.tenants) return;
  live.tenants.tenants = live.tenants.tenants.map((old) => (old.tenant === fresh.tenant ? fresh : old));
}

/** Fetches what the stream would send: a proxy may hold the stream back. */
function fetchWithoutStream() {
  refetch.dashboard();
  refetch.stuck();
  refetch.trend();
  refetch.quota();
  refetch.deadLetters();
  refetch.cleanups();
  refetch.pendingCleanups();
  refetch.sweeps();
  refetch.spool();
}

/** Fetches again each list whose last call failed. */
function refetchFailed() {
  for (const name of Object.keys(live.errors)) refetch[name]?.();
}

async function fetchReadiness() {
  try {
    live.readiness = await get("/readyz", { isPublic: true });
  } catch (error) {
    if (error.problem?.backends) live.readiness = error.problem;
  }
  emitChange();
}

/** What to do with each event of the stream. */
const handlers = {
  dashboard(fresh) {
    const old = live.dashboard;
    live.serverError = "";
    live.dashboard = fresh;
    if (fresh.stuckFiles !== old?.stuckFiles || fresh.stuckFiles > 0) refetch.stuck();
    // A file may fail again between two events: the count is the same, but the dead letter is another one.
    if (fresh.dlqDepth !== old?.dlqDepth || fresh.dlqDepth > 0) refetch.deadLetters();
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
  trouble: ({ detail }) => (live.serverError = detail),
  notification(fresh) {
    live.notifications = [fresh, ...(live.notifications ?? []).filter((old) => old.id !== fresh.id)].slice(0, NOTIFICATIONS_MAX);
    notificationWatchers.forEach((watcher) => watcher(fresh));
  },
};

function connect() {
  close = listen(`/api/v2/stream${tenantQuery("?")}`, {
    onEvent(name, data) {
      delete live.errors[name];
      handlers[name]?.(data);
      emitChange();
    },
    onState(connection) {
      if (connection === "live" && live.isDisconnected) {
        // The stream does not repeat notifications that arrived during the interruption.
        refetch.notifications();
        refetch.stuck();
        refetch.deadLetters();
        refetchFailed();
      }
      live.connection = connection;
      if (connection === "live") live.isDisconnected = false;
      if (connection === "disconnected") setDisconnected();
      emitChange();
    },
    onSilence: setDisconnected,
  });
}

/** Stays so until an event arrives, also while the stream is being opened again. */
function setDisconnected() {
  live.isDisconnected = true;
  fetchWithoutStream();
  emitChange();
}

export function start() {
  Object.assign(live, empty());
  connect();
  const poll = () => {
    if (live.isDisconnected) fetchWithoutStream();
    refetchFailed();
    refetch.orphans();
    refetch.stuck();
    refetch.deadLetters();
    if (isOperator()) refetch.tenants();
    if (live.keys) refetch.keys();
    if (live.audit) refetch.audit();
    fetchReadiness();
  };
  refetch.notifications();
  poll();
  timer = setInterval(poll, POLL_MS);
}

export function stop() {
  close();
  clearInterval(timer);
  Object.assign(live, empty());
}

/** Shows an operator one tenant, or all tenants (""). */
export function selectTenant(tenant) {
  close();
  const unknown = { dashboard: null, trend: null, quota: null, stuck: null, deadLetters: null, orphans: null, cleanups: null, pendingCleanups: null };
  Object.assign(live, { tenant, ...unknown });
  for (const name of Object.keys(unknown)) delete live.errors[name];
  connect();
  refetch.orphans();
  emitChange();
}
