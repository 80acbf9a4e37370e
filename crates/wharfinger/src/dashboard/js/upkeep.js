// The store and what it holds: quotas, orphans, pending deletes, the events' spool, the backends.

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { runNow, setLimit, triggerCleanup } from "./mending.js";
import { isKeeper, isOperator } from "./session.js";
import { loading, meter, nothing, section, table } from "./tables.js";
import { bytes, duration, number, plural, share, sweepMeaning, time } from "./words.js";

const fullness = (quota) => (quota.limit > 0 ? (quota.used / quota.limit) * 100 : 100);
const level = (quota) => (fullness(quota) >= 100 ? "bad" : fullness(quota) >= 90 ? "warn" : "");

const TENANTS_MAX = 30;

export function quotaLine(quota, tools = null) {
  return h("li", { class: "quota", "data-key": quota.tenant, "data-tenant": quota.tenant },
    h("div", { class: "quota-head" },
      h("span", { class: "name" }, quota.tenant),
      h("span", {}, `${bytes(quota.used)} of ${bytes(quota.limit)}`, h("span", { class: "muted" }, ` · ${share(quota.used, quota.limit)}`)),
      tools),
    meter(`Quota of ${quota.tenant}`, quota.used, quota.limit, level(quota)),
    quota.reserved ? h("p", { class: "muted" }, `${bytes(quota.reserved)} of it reserved for uploads that are not confirmed`) : null);
}

export function quotaSection() {
  const list = isOperator() ? live.tenants?.tenants : live.quota && [live.quota];
  const content = !list ? loading(isOperator() ? "tenants" : "quota")
    : !list.length ? nothing("No tenant has a file yet.")
      : h("ul", { class: "quotas" }, [...list].sort((a, b) => fullness(b) - fullness(a)).slice(0, TENANTS_MAX).map((quota) => quotaLine(quota, isOperator() && setLimit(quota, "quiet"))));
  return section("quotas", isOperator() ? "Quotas by tenant" : "Quota", content, { hint: `Charged when an upload is announced, given back when it goes.${list?.length > TENANTS_MAX ? ` The ${TENANTS_MAX} fullest of ${number(list.length)}.` : ""}` });
}

const figure = (label, value, note, kind = "") => h("div", { class: `figure ${kind}` }, h("dt", {}, label), h("dd", {}, value, note ? h("span", { class: "muted" }, note) : null));

export function orphansSection() {
  const report = live.orphans;
  if (!report) return section("orphans", "Orphans", loading("orphans"));
  const { orphanBlobs, abandonedUploads, missingBlobs } = report;
  const sweep = isOperator() && runNow({ name: "orphan-cleanup", meaning: sweepMeaning("orphan-cleanup") }, "");
  return section("orphans", "Orphans", [
    h("dl", { class: "figures" },
      figure("Objects without a file", number(orphanBlobs.count), bytes(orphanBlobs.totalSize), orphanBlobs.count ? "warn" : ""),
      figure("Files without their object", number(missingBlobs.count), "missing bytes", missingBlobs.count ? "bad" : ""),
      figure("Abandoned uploads", number(abandonedUploads.count), abandonedUploads.count ? `oldest ${duration(abandonedUploads.oldestAge)}` : "never confirmed")),
    missingBlobs.samples.length ? h("details", { open: true }, h("summary", {}, `Files without their object: ${plural(missingBlobs.samples.length, "sample")}`),
      h("ul", { class: "samples" }, missingBlobs.samples.map((blob) => h("li", { "data-key": blob.fileId }, h("a", { href: `#/files/${blob.fileId}` }, blob.fileName), h("code", {}, blob.filePath))))) : null,
    orphanBlobs.samples.length ? h("details", {}, h("summary", {}, `Objects without a file: ${plural(orphanBlobs.samples.length, "sample")}`),
      h("ul", { class: "samples" }, orphanBlobs.samples.map((blob) => h("li", { "data-key": blob.filePath }, h("code", {}, blob.filePath), h("span", { class: "muted" }, `${bytes(blob.size)} · `, time(blob.lastModified)))))) : null,
  ], { tools: sweep, hint: report.lastScanTime ? ["What the last scan of the store found and is still so: ", time(report.lastScanTime), "."] : "The store was not scanned yet.", count: null });
}

export function cleanupsSection(most = 100) {
  const status = live.cleanups;
  if (!status) return section("cleanups", "Pending deletes", loading("cleanups"));
  const waiting = status.pending + status.exhausted;
  // Those that went wrong first: the others are nobody's trouble.
  const list = [...(live.pendingCleanups?.cleanups ?? [])].sort((one, other) => (other.lastError !== null) - (one.lastError !== null));
  return section("cleanups", "Pending deletes", [
    h("dl", { class: "figures" },
      figure("Pending", number(status.pending), status.oldestAge === null ? "nothing waits" : `oldest ${duration(status.oldestAge)}`),
      figure("Given up", number(status.exhausted), "tried once a day", status.exhausted ? "bad" : ""),
      figure("Last run", time(status.lastRun), "")),
    list.length ? table("Pending deletes", [
      { name: "Object", isHead: true, cell: (cleanup) => h("code", {}, cleanup.filePath) },
      { name: "Because", cell: (cleanup) => cleanup.reason },
      { name: "Attempts", isNumber: true, cell: (cleanup) => h("span", { class: cleanup.attempts >= cleanup.maxAttempts ? "wrong" : null }, `${number(cleanup.attempts)} of ${number(cleanup.maxAttempts)}${cleanup.attempts >= cleanup.maxAttempts ? ", given up" : ""}`) },
      { name: "Last try", cell: (cleanup) => cleanup.lastError ?? h("span", { class: "muted" }, cleanup.lastAttemptAt ? "gone; deleted again later, in case it was written meanwhile" : "none yet") },
      { name: "Since", cell: (cleanup) => time(cleanup.createdAt) },
    ], list.slice(0, most), (cleanup) => cleanup.id) : live.errors.pendingCleanups || !live.pendingCleanups ? loading("pendingCleanups") : nothing("Nothing waits to be deleted."),
    list.length && live.pendingCleanups.nextCursor && most >= list.length ? nothing(`${number(list.length)} or more: these are the first.`) : null,
  ], { tools: waiting > 0 && triggerCleanup(waiting), wide: true, hint: "Objects of deleted files that the store has not let go yet, or that are gone and will be deleted once more." });
}

export function spoolSection() {
  const told = live.spool;
  if (!told) return section("spool", "Events on disk", loading("spool"));
  const spool = told.spool;
  if (!spool) return section("spool", "Events on disk", nothing(`${told.instance} takes no events.`));
  const state = spool.isStoreUp ? h("span", { class: "badge ok" }, icon("check"), "store takes them") : h("span", { class: "badge bad" }, icon("cross"), "store is away");
  return section("spool", "Events on disk", [
    h("dl", { class: "figures" },
      figure("Batches waiting", number(spool.files), spool.oldestAge === null ? "none" : `oldest ${duration(spool.oldestAge)}`, spool.isStoreUp ? "" : "bad"),
      figure("On disk", bytes(spool.bytes), `of ${bytes(spool.maxBytes)}`),
      figure("Archive", state, "")),
    meter("Room for events on disk", spool.bytes, spool.maxBytes, spool.bytes / spool.maxBytes > 0.5 ? "warn" : ""),
  ], { hint: `What ${told.instance} holds until the store takes it.` });
}

export function backendsSection() {
  const ready = live.readiness;
  if (!ready) return section("backends", "Backends", loading());
  return section("backends", "Backends", h("ul", { class: "backends" }, (ready.backends ?? []).map((backend) => h("li", { "data-key": backend.name },
    h("span", { class: `badge ${backend.ok ? "ok" : backend.needed ? "bad" : "warn"}` }, icon(backend.ok ? "check" : "cross"), backend.ok ? "answers" : "away"),
    h("span", { class: "name" }, backend.name), h("span", { class: "muted" }, backend.kind)))), { hint: `This process: ${(ready.roles ?? []).join(", ")}.` });
}

export const upkeep = {
  title: "Upkeep",
  render: () => [
    h("h1", {}, "Upkeep"),
    h("div", { class: "columns" }, quotaSection(), orphansSection(), isOperator() && spoolSection(), backendsSection(), isKeeper() && cleanupsSection()),
  ],
};
