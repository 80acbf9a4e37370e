// An operator's chores from the page: a sweep dry and in earnest, a limit, deletes that wait; and the line that breaks.

import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { base, check, ends, expect, place, put, same, scenario, tokens, until } from "./stage.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await ends(tokens.user, await put(tokens.user, "held.txt", "x".repeat(2000)), "ready");
  await window.signIn(tokens.operator, "#/sweeps");
  const lastRun = async () => (await expect(tokens.operator, "GET", "/api/v2/maintenance/sweeps")).sweeps.find((sweep) => sweep.name === "orphan-cleanup").lastRun;
  const before = await lastRun();
  const dry = await window.act("dry-run-orphan-cleanup");
  check(dry.said.includes("changes nothing") && dry.outcome.includes("nothing was changed"), dry.outcome);
  const earnest = await window.act("run-orphan-cleanup");
  check(earnest.outcome.includes("orphan-cleanup ran in"), earnest.outcome);
  check((await lastRun()) !== before, "it has run");

  await window.go("#/upkeep");
  await page.locator('[data-tenant="acme"]').waitFor();
  await page.locator('[data-action="limit-acme"]').click();
  await page.fill("#dialog-field", "a lot");
  await page.keyboard.press("Enter");
  await page.locator("#dialog-wrong", { hasText: "A size is a number" }).waitFor();
  await page.fill("#dialog-field", "2 KiB");
  await page.keyboard.press("Enter");
  await page.locator(".toast", { hasText: "acme may now hold 2.00 KiB" }).waitFor();
  same((await expect(tokens.admin, "GET", "/api/v2/quota")).limit, 2048, "by the API");
  await page.locator('[data-tenant="acme"] .meter.warn').waitFor();
  await window.go("#/");
  await page.locator('[data-problem="quota-acme"]', { hasText: "near its quota" }).waitFor();
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1_000_000 });

  // What was made of a deleted file is gone at once, and is not said to be still there.
  const earlier = await put(tokens.user, "earlier.txt", "e");
  await ends(tokens.user, earlier, "ready");
  await expect(tokens.user, "DELETE", `/api/v2/files/${earlier}`);
  const deletes = page.locator('[data-key="cleanups"] tbody tr');
  await deletes.filter({ hasText: "gone; deleted again later" }).first().waitFor();

  // A delete that the store does not do: told, and done when what hindered it is gone.
  const doomed = await put(tokens.user, "doomed.txt", "d");
  await ends(tokens.user, doomed, "ready");
  const object = join(place, "wharfinger-data/blobs/uploads/acme/ada", doomed);
  renameSync(object, `${object}.aside`);
  mkdirSync(join(object, "in-the-way"), { recursive: true });
  await expect(tokens.user, "DELETE", `/api/v2/files/${doomed}`);
  const given = page.locator('[data-problem="cleanups"]', { hasText: "1 delete is given up" });
  await given.waitFor();
  await deletes.first().filter({ hasText: "given up" }).waitFor();
  await window.isOpenToAll("an overview with a delete that was given up");
  // The server's own round may be first.
  let failed;
  for (let tries = 0; tries < 20 && (!failed || failed.outcome.includes("Nothing was due")); tries++) failed = await window.act("cleanup", "#verdict");
  check(failed.isBad && failed.outcome.includes("0 of 1 delete done"), failed.outcome);
  rmSync(object, { recursive: true });
  renameSync(`${object}.aside`, object);
  const done = await window.act("cleanup", "#verdict");
  check(!done.isBad && /1 of 1 delete done|Nothing was due/.test(done.outcome), done.outcome);
  await given.waitFor({ state: "detached" });
  check(!existsSync(object), "the bytes are gone");

  // The events' store goes away: they wait on disk, and the page says so.
  renameSync(join(place, "archive"), join(place, "archive.aside"));
  writeFileSync(join(place, "archive"), "");
  await expect(tokens.user, "POST", "/api/v2/events", [{ what: "arrived" }]);
  await page.locator('[data-problem="spool"]', { hasText: "their store is away" }).waitFor();
  rmSync(join(place, "archive"));
  renameSync(join(place, "archive.aside"), join(place, "archive"));
  await page.locator('[data-problem="spool"]').waitFor({ state: "detached" });

  // A proxy lets no stream through: the page says so, and shows what is so all the same.
  const cut = await open();
  cut.allow(/\/api\/v2\/stream/);
  let isHeldBack = false;
  await cut.page.route("**/api/v2/stream*", (route) => (isHeldBack ? undefined : route.abort()));
  await cut.arrive(`${base}/#token=${tokens.operator}`);
  await cut.page.locator("#line", { hasText: "Not connected" }).waitFor();
  await cut.page.locator('[data-status="ready"] .step-count', { hasText: "1" }).waitFor();
  await cut.page.locator('[data-problem="line"]').waitFor();
  // Nor does it say that all is well while it tries again and nothing comes: it asks without the stream.
  await cut.page.evaluate(() => {
    globalThis.wasGreen = false;
    const look = () => (globalThis.wasGreen ||= document.querySelector(".verdict.ok, #line.ok") !== null);
    new MutationObserver(look).observe(document.getElementById("app"), { subtree: true, childList: true, attributes: true });
  });
  isHeldBack = true;
  const count = (path) => cut.requests.filter((request) => request.url().includes(path)).length;
  const tried = count("/api/v2/stream");
  await until(() => count("/api/v2/stream") > tried, "the stream is tried again");
  const asked = count("/uploads/dashboard");
  await until(() => count("/uploads/dashboard") > asked, "the figures are asked for");
  await cut.page.locator('[data-problem="line"]').waitFor();
  same(await cut.page.evaluate(() => globalThis.wasGreen), false, "whether it was green in between");

  // The line breaks and comes back: the page says both, and is up to date again by itself.
  window.allow(/ERR_INTERNET_DISCONNECTED/, /net::ERR_/);
  await page.context().setOffline(true);
  await page.evaluate(() => null);
  const line = page.locator("#line");
  // Chromium lets a stream that is open go on: another look at it is what breaks.
  await page.selectOption("#tenant", "acme");
  await line.filter({ hasText: "Not connected" }).waitFor();
  await page.locator('[data-problem="line"]').waitFor();
  const id = await put(tokens.user, "meanwhile.txt", "m");
  await ends(tokens.user, id, "ready");
  await page.context().setOffline(false);
  await line.filter({ hasText: "Live" }).waitFor();
  await until(async () => (await page.locator('[data-status="ready"] .step-count').innerText()) === "2", "it has caught up");
});
