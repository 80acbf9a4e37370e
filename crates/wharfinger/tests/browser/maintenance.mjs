// The operator's actions on the page: a dry run and a real run of a sweep, its history, a scan for orphans, a quota limit,
// pending and finished deletes. Then the store of events fails, and the connection of the page breaks.

import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { base, check, waitForStatus, expect, place, put, same, scenario, tokens, until } from "./scenario.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await waitForStatus(tokens.user, await put(tokens.user, "held.txt", "x".repeat(2000)), "ready");
  await window.signIn(tokens.operator, "#/sweeps");
  const lastRun = async () => (await expect(tokens.operator, "GET", "/api/v2/maintenance/sweeps")).sweeps.find((sweep) => sweep.name === "orphan-cleanup").lastRun;
  const before = await lastRun();
  const dry = await window.act("dry-run-orphan-cleanup");
  check(dry.text.includes("changes nothing") && dry.outcome.includes("nothing was changed"), dry.outcome);
  const real = await window.act("run-orphan-cleanup");
  check(real.outcome.includes("orphan-cleanup finished in"), real.outcome);
  check((await lastRun()) !== before, "the time of the last run has changed");

  // The history of the sweep, newest first.
  await page.locator("a.name", { hasText: "orphan-cleanup" }).click();
  const runs = page.locator('[data-key="runs"] tbody tr');
  await runs.nth(1).filter({ hasText: "dry run" }).waitFor();
  check(!(await runs.first().innerText()).includes("dry run"), "the real run is first");
  same(await runs.filter({ hasText: "operator:olga" }).count(), 2, "runs by hand");
  await window.checkAccessibility("the runs of a sweep");
  await window.screenshot("sweep-runs");
  await window.act("dry-run-orphan-cleanup");
  await runs.nth(2).waitFor();

  // A scan for orphans shows what would be deleted, and deletes nothing.
  await window.go("#/maintenance");
  const stray = "uploads/acme/ada/00000000-0000-7000-8000-000000000001";
  const strayPath = join(place, "wharfinger-data/blobs", stray);
  writeFileSync(strayPath, "stray");
  const old = Date.now() / 1000 - 3 * 86_400;
  utimesSync(strayPath, old, old);
  const markerPath = join(place, "wharfinger-data/blobs/.wharfinger/store");
  // Objects that are older than the marker are not ours.
  writeFileSync(markerPath, `${readFileSync(markerPath, "utf8").trim().split(/\s+/).slice(0, 3).join(" ")} 1\n`);
  const scanned = await window.act("scan-orphans");
  check(scanned.text.includes("Nothing is deleted") && scanned.outcome.includes("1 object would be deleted"), scanned.outcome);
  const wouldBe = page.locator('[data-key="would-be-deleted"]');
  await wouldBe.locator("summary").click();
  await wouldBe.locator("code", { hasText: stray }).waitFor();
  await window.screenshot("orphans-found", true);
  check(existsSync(strayPath), "the object is still there");
  await window.act("run-orphan-cleanup", '[data-key="orphans"]');
  await wouldBe.waitFor({ state: "detached" });
  check(!existsSync(strayPath), "the object is deleted");

  // The log of deleted objects says why, and can be narrowed to a time.
  const log = page.locator('[data-key="deletions"] tbody tr');
  await log.filter({ hasText: stray }).filter({ hasText: "orphan-cleanup" }).waitFor();
  const answered = page.waitForResponse((response) => response.url().includes("/maintenance/deletions?since=1970"));
  await page.selectOption("#deletions-since", "all");
  await answered;
  await log.first().waitFor();
  await window.checkAccessibility("the log of deleted objects");

  await window.go("#/maintenance");
  await page.locator('[data-tenant="acme"]').waitFor();
  await page.locator('[data-action="limit-acme"]').click();
  await page.fill("#dialog-field", "a lot");
  await page.keyboard.press("Enter");
  await page.locator("#dialog-error", { hasText: "Enter a size with a unit" }).waitFor();
  await page.fill("#dialog-field", "2 KiB");
  await page.keyboard.press("Enter");
  await page.locator(".toast", { hasText: "The quota limit of acme is now 2.00 KiB" }).waitFor();
  same((await expect(tokens.admin, "GET", "/api/v2/quota")).limit, 2048, "by the API");
  await page.locator('[data-tenant="acme"] .meter.warn').waitFor();
  await window.go("#/");
  await page.locator('[data-problem="quota-acme"]', { hasText: "near its quota" }).waitFor();
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1_000_000 });

  // The derived data of a deleted file is deleted at once, and the list says so.
  const earlier = await put(tokens.user, "earlier.txt", "e");
  await waitForStatus(tokens.user, earlier, "ready");
  await expect(tokens.user, "DELETE", `/api/v2/files/${earlier}`);
  const deletes = page.locator('[data-key="cleanups"] tbody tr');
  await deletes.filter({ hasText: "deleted; will be deleted once more" }).first().waitFor();

  // A delete that fails in the store: the page shows it, and a retry succeeds when the obstacle is removed.
  const doomed = await put(tokens.user, "doomed.txt", "d");
  await waitForStatus(tokens.user, doomed, "ready");
  const object = join(place, "wharfinger-data/blobs/uploads/acme/ada", doomed);
  renameSync(object, `${object}.aside`);
  mkdirSync(join(object, "in-the-way"), { recursive: true });
  await expect(tokens.user, "DELETE", `/api/v2/files/${doomed}`);
  const given = page.locator('[data-problem="cleanups"]', { hasText: "1 delete failed on every attempt" });
  await given.waitFor();
  await deletes.first().filter({ hasText: "none left" }).waitFor();
  await window.checkAccessibility("an overview with a failed delete");
  // The server's own retry may come first.
  let failed;
  for (let tries = 0; tries < 20 && (!failed || failed.outcome.includes("Nothing was due")); tries++) failed = await window.act("cleanup", "#health");
  check(failed.isBad && failed.outcome.includes("0 of 1 delete done"), failed.outcome);
  rmSync(object, { recursive: true });
  renameSync(`${object}.aside`, object);
  const done = await window.act("cleanup", "#health");
  check(!done.isBad && /1 of 1 delete done|Nothing was due/.test(done.outcome), done.outcome);
  await given.waitFor({ state: "detached" });
  check(!existsSync(object), "the bytes are gone");

  // The store of events fails: they are kept on disk, and the page shows it.
  renameSync(join(place, "archive"), join(place, "archive.aside"));
  writeFileSync(join(place, "archive"), "");
  await expect(tokens.user, "POST", "/api/v2/events", [{ what: "arrived" }]);
  await page.locator('[data-problem="spool"]', { hasText: "the event store does not answer" }).waitFor();
  rmSync(join(place, "archive"));
  renameSync(join(place, "archive.aside"), join(place, "archive"));
  await page.locator('[data-problem="spool"]').waitFor({ state: "detached" });

  // A proxy blocks the stream: the page says so and still shows the current figures.
  const cut = await open();
  cut.allow(/\/api\/v2\/stream/);
  let isHeldBack = false;
  await cut.page.route("**/api/v2/stream*", (route) => (isHeldBack ? undefined : route.abort()));
  await cut.openLink(`${base}/#token=${tokens.operator}`);
  await cut.page.locator("#connection", { hasText: "Not connected" }).waitFor();
  await cut.page.locator('[data-status="ready"] .step-count', { hasText: "1" }).waitFor();
  await cut.page.locator('[data-problem="connection"]').waitFor();
  // While it reconnects without success, it must not look connected, and it fetches the figures without the stream.
  await cut.page.evaluate(() => {
    globalThis.wasGreen = false;
    const record = () => (globalThis.wasGreen ||= document.querySelector(".health.ok, #connection.ok") !== null);
    new MutationObserver(record).observe(document.getElementById("app"), { subtree: true, childList: true, attributes: true });
  });
  isHeldBack = true;
  const count = (path) => cut.requests.filter((request) => request.url().includes(path)).length;
  const tried = count("/api/v2/stream");
  await until(() => count("/api/v2/stream") > tried, "the stream is tried again");
  const asked = count("/uploads/dashboard");
  await until(() => count("/uploads/dashboard") > asked, "the figures are fetched");
  await cut.page.locator('[data-problem="connection"]').waitFor();
  same(await cut.page.evaluate(() => globalThis.wasGreen), false, "whether it looked connected meanwhile");

  // The connection breaks and comes back: the page shows both and updates itself.
  window.allow(/ERR_INTERNET_DISCONNECTED/, /net::ERR_/);
  await page.context().setOffline(true);
  await page.evaluate(() => null);
  const connection = page.locator("#connection");
  // Chromium does not cut an open stream when it goes offline. Another tenant needs a new stream, and that fails.
  await page.selectOption("#tenant", "acme");
  await connection.filter({ hasText: "Not connected" }).waitFor();
  await page.locator('[data-problem="connection"]').waitFor();
  const id = await put(tokens.user, "meanwhile.txt", "m");
  await waitForStatus(tokens.user, id, "ready");
  await page.context().setOffline(false);
  await connection.filter({ hasText: "Live" }).waitFor();
  await until(async () => (await page.locator('[data-status="ready"] .step-count').innerText()) === "2", "the page is up to date");
});
