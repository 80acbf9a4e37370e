// The maintenance page: quotas, orphans, pending and finished deletes, events on disk, and the state of the backends.

import { runNow, scanOrphans, setLimit, triggerCleanup } from "./actions.js";
import { auditSection } from "./audit.js";
import { deletionsSection, openDeletions } from "./deletions.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { keysSection } from "./keys.js";
import { live, refetch } from "./live.js";
import { isAdmin, isOperator } from "./session.js";
import { loading, meter, placeholder, section, table } from "./tables.js";
import { bytes, duration, number, plural, share, sweepMeaning, time } from "./words.js";

const usedPercent = (quota) => (quota.limit > 0 ? (quota.used / quota.limit) * 100 : 100);
const level = (quota) => (usedPercent(quota) >= 100 ? "bad" : usedPercent(quota) >= 90 ? "warn" : "");

const TENANTS_MAX = 30;

function quotaLine(quota, tools = null) {
  return h("li", { class: "quota", "data-key": quota.tenant, "data-tenant": quota.tenant },
    h("div", { class: "quota-head" },
      h("span", { class: "name" }, quota.tenant),
      h("span", {}, `${bytes(quota.used)} of ${bytes(quota.limit)}`, h("span", { class: "muted" }, ` · ${share(quota.used, quota.limit)}`)),
      tools),
    meter(`Quota of ${quota.tenant}`, quota.used, quota.limit, level(quota)),
    quota.reserved ? h("p", { class: "muted" }, `${bytes(quota.reserved)} of it reserved for unconfirmed uploads`) : null);
}

export function quotaSection() {
  const list = isOperator() ? live.tenants?.tenants : live.quota && [live.quota];
  const quotaList = !list ? loading(isOperator() ? "tenants" : "quota")
    : !list.length ? placeholder("No tenant has files yet.")
      : h("ul", { class: "quotas" }, [...list].sort((a, b) => usedPercent(b) - usedPercent(a)).slice(0, TENANTS_MAX).map((quota) => quotaLine(quota, isOperator() && setLimit(quota, "quiet"))));
  return section("quotas", isOperator() ? "Quotas by tenant" : "Quota", quotaList, { hint: `The size of a file is charged when its upload starts, and released after it is deleted.${list?.length > TENANTS_MAX ? ` Shown: the ${TENANTS_MAX} fullest of ${number(list.length)} tenants.` : ""}` });
}

const figure = (label, value, note, kind = "") => h("div", { class: `figure ${kind}` }, h("dt", {}, label), h("dd", {}, value, note ? h("span", { class: "muted" }, note) : null));

export function orphansSection() {
  const report = live.orphans;
  if (!report) return section("orphans", "Orphans", loading("orphans"));
  const { orphanBlobs, abandonedUploads, missingBlobs } = report;
  const tools = isOperator() && [scanOrphans(), runNow({ name: "orphan-cleanup", meaning: sweepMeaning("orphan-cleanup") }, "", "Clean up now")];
  const sample = (blob, name) => h("li", { "data-key": blob.key }, name, h("code", {}, blob.key), h("span", { class: "muted" }, `${bytes(blob.size)} · ${duration(blob.age)} old`));
  const more = (found) => (found.count > found.details.length ? h("li", { class: "muted" }, `${number(found.count - found.details.length)} more`) : null);
  return section("orphans", "Orphans", [
    h("dl", { class: "figures" },
      figure("Objects without a file", number(orphanBlobs.count), bytes(orphanBlobs.totalSize), orphanBlobs.count ? "warn" : ""),
      figure("Files without an object", number(missingBlobs.count), "bytes are missing", missingBlobs.count ? "bad" : ""),
      figure("Abandoned uploads", number(abandonedUploads.count), abandonedUploads.count ? `oldest ${duration(abandonedUploads.oldestAge)}` : "never confirmed")),
    missingBlobs.details.length ? h("details", { open: true }, h("summary", {}, `Files without an object: ${plural(missingBlobs.details.length, "sample")}`),
      h("ul", { class: "samples" }, missingBlobs.details.map((blob) => sample(blob, h("a", { href: `#/files/${blob.fileId}` }, blob.fileName))), more(missingBlobs))) : null,
    orphanBlobs.details.length ? h("details", { "data-key": "would-be-deleted" }, h("summary", {}, `The next cleanup would delete ${plural(orphanBlobs.count, "object")}`),
      h("ul", { class: "samples" }, orphanBlobs.details.map((blob) => sample(blob, blob.fileName)), more(orphanBlobs))) : null,
  ], { tools, hint: report.lastScanTime ? ["Found by the last scan of the store (", time(report.lastScanTime), ") and not repaired yet."] : "The store has not been scanned yet." });
}

export function cleanupsSection(most = 100) {
  const status = live.cleanups;
  if (!status) return section("cleanups", "Pending deletes", loading("cleanups"));
  const waiting = status.pending + status.exhausted;
  // Failed deletes come first: the others need no attention.
  const list = [...(live.pendingCleanups?.cleanups ?? [])].sort((one, other) => (other.lastError !== null) - (one.lastError !== null));
  return section("cleanups", "Pending deletes", [
    h("dl", { class: "figures" },
      figure("Pending", number(status.pending), status.oldestAge === null ? "none" : `oldest ${duration(status.oldestAge)}`),
      figure("No attempts left", number(status.exhausted), "retried once a day", status.exhausted ? "bad" : ""),
      figure("Last run", time(status.lastRun), "")),
    list.length ? table("Pending deletes", [
      { name: "Object", isHead: true, cell: (cleanup) => h("code", {}, cleanup.filePath) },
      { name: "Reason", cell: (cleanup) => cleanup.reason },
      { name: "Attempts", isNumber: true, cell: (cleanup) => h("span", { class: cleanup.attempts >= cleanup.maxAttempts ? "error" : null }, `${number(cleanup.attempts)} of ${number(cleanup.maxAttempts)}${cleanup.attempts >= cleanup.maxAttempts ? ", none left" : ""}`) },
      { name: "Last attempt", cell: (cleanup) => cleanup.lastError ?? h("span", { class: "muted" }, cleanup.lastAttemptAt ? "deleted; will be deleted once more, in case of a late upload" : "none yet") },
      { name: "Created", cell: (cleanup) => time(cleanup.createdAt) },
    ], list.slice(0, most), (cleanup) => cleanup.id) : live.errors.pendingCleanups || !live.pendingCleanups ? loading("pendingCleanups") : placeholder("No deletes are pending."),
    list.length && live.pendingCleanups.nextCursor && most >= list.length ? placeholder(`The first ${number(list.length)} are shown. There are more.`) : null,
  ], { tools: waiting > 0 && triggerCleanup(waiting), wide: true, hint: "Objects of deleted files that are not deleted from the store yet, or that will be deleted a second time." });
}

export function spoolSection() {
  const state = live.spool;
  if (!state) return section("spool", "Events on disk", loading("spool"));
  const { instance, spool } = state;
  if (!spool) return section("spool", "Events on disk", placeholder(`${instance} does not accept events.`));
  const store = spool.isStoreUp ? h("span", { class: "badge ok" }, icon("check"), "available") : h("span", { class: "badge bad" }, icon("cross"), "not available");
  return section("spool", "Events on disk", [
    h("dl", { class: "figures" },
      figure("Batches waiting", number(spool.files), spool.oldestAge === null ? "none" : `oldest ${duration(spool.oldestAge)}`, spool.isStoreUp ? "" : "bad"),
      figure("On disk", bytes(spool.bytes), `of ${bytes(spool.maxBytes)}`),
      figure("Event store", store, "")),
    meter("Disk space for events", spool.bytes, spool.maxBytes, spool.bytes / spool.maxBytes > 0.5 ? "warn" : ""),
  ], { hint: `Events that ${instance} stores on disk until the event store accepts them.` });
}

export function backendsSection() {
  const ready = live.readiness;
  if (!ready) return section("backends", "Backends", loading());
  return section("backends", "Backends", h("ul", { class: "backends" }, (ready.backends ?? []).map((backend) => h("li", { "data-key": backend.name },
    h("span", { class: `badge ${backend.ok ? "ok" : backend.needed ? "bad" : "warn"}` }, icon(backend.ok ? "check" : "cross"), backend.ok ? "available" : "not available"),
    h("span", { class: "name" }, backend.name), h("span", { class: "muted" }, backend.kind)))), { hint: `Roles of this process: ${(ready.roles ?? []).join(", ")}.` });
}

export const maintenance = {
  title: "Maintenance",
  enter() {
    if (isOperator()) refetch.keys();
    if (isAdmin()) {
      openDeletions();
      refetch.audit();
    }
  },
  render: () => [
    h("h1", {}, "Maintenance"),
    h("div", { class: "columns" }, quotaSection(), orphansSection(), isOperator() && spoolSection(), backendsSection(), isAdmin() && cleanupsSection(), isAdmin() && deletionsSection(), isOperator() && keysSection(), isAdmin() && auditSection()),
  ],
};
