// How it looks and for whom: light and dark, desktop and phone, by keyboard, and for who does not see it; with a place
// in which something is going on. Here the README's pictures are taken.

import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { check, ends, expect, fileOf, place, put, same, scenario, throttle, tokens, until, worker } from "./stage.mjs";

const PAGES = ["#/", "#/files", "#/upload", "#/recovery", "#/upkeep", "#/sweeps", "#/notifications"];
const NAMES = ["bill-of-lading-4711.txt", "harbour-dues-2026.md", "crew-list.csv", "tide-tables.txt", "manifest-north-quay.txt", "customs-declaration.md", "survey-hull-7.txt", "insurance-schedule.txt"];
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

/** Files that are through, files that failed, one that is stuck, one whose bytes somebody took away. */
async function furnish() {
  const done = [];
  for (const [at, name] of NAMES.entries()) done.push(await put(tokens.user, name, `Document ${at}. The wharfinger keeps the quay.\n`.repeat(40 * (at + 1))));
  for (let at = 0; at < 24; at += 1) done.push(await put(tokens.operator, `invoice-${1000 + at}.txt`, `Invoice ${at}: ${"sacks of coffee ".repeat(20)}`));
  same(await worker([], "", true).ended, 0, "scanned");
  for (const id of done) await ends(tokens.operator, id, "ready");
  const binary = await put(tokens.user, "blueprint-crane.bin", randomBytes(4000), "application/octet-stream");
  const eicar = ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR", "-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"].join("");
  const infected = await put(tokens.user, "free-screensaver.txt", eicar);
  same(await worker([], "", true).ended, 0, "scanned");
  await ends(tokens.operator, binary, "failed");
  await ends(tokens.operator, infected, "quarantined");
  const hung = worker(["scan"], "worker.STAGES['scan'] = lambda job: time.sleep(3600)");
  const stuck = await put(tokens.user, "ledger-2026-q3.txt", "Two hundred sacks.");
  await ends(tokens.user, stuck, "scanning");
  hung.child.kill("SIGKILL");
  await hung.ended;
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 70_000 });
  // Somebody takes an object away behind everybody's back; the next scan finds out.
  const { events } = await expect(tokens.operator, "GET", `/api/v2/files/${done[1]}/history`);
  check(events.length > 3, "it has a history");
  rmSync(join(place, "wharfinger-data/blobs/uploads/acme/ada", done[1]));
  await expect(tokens.operator, "POST", "/api/v2/maintenance/sweeps/orphan-cleanup/run", { dryRun: false });
  return { timeline: done[0] };
}

/** Nothing sticks out at the side. */
async function fits({ page }, where) {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  check(wide <= room, `${where} is ${wide} wide in ${room}`);
}

await scenario(async ({ open }) => {
  const { timeline } = await furnish();
  const light = await open();
  await light.signIn(tokens.operator);
  for (const key of ["stuck", "letters", "missing", "quota-acme"]) await light.page.locator(`[data-problem="${key}"]`).waitFor();
  await light.page.locator("#h-stuck").waitFor();
  for (let at = 0; at < 5; at += 1) await put(tokens.user, `arrivals-${at}.txt`, `Arrival ${at}`);
  await light.page.locator('[data-status="queued"] .step-count', { hasText: "5" }).waitFor();
  await light.shoot("overview-light");
  await light.shoot("overview-light-whole", true);

  const dark = await open({ colorScheme: "dark" });
  await dark.signIn(tokens.operator);
  await dark.page.locator('[data-problem="missing"]').waitFor();
  check((await background(light.page)) !== (await background(dark.page)), "the system's wish is followed");
  await dark.shoot("overview-dark");
  const phone = await open({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  await phone.signIn(tokens.operator);
  await phone.page.locator('[data-problem="missing"]').waitFor();
  await phone.shoot("overview-phone");

  for (const [window, name] of [[light, "light"], [dark, "dark"], [phone, "phone"]]) {
    for (const hash of [...PAGES, `#/files/${timeline}`]) {
      await window.go(hash);
      await until(async () => (await window.page.locator(".nothing", { hasText: "Loading" }).count()) === 0, `${hash} is there`);
      await window.isOpenToAll(`${hash} (${name})`);
      await fits(window, `${hash} (${name})`);
    }
  }
  await light.go(`#/files/${timeline}`);
  await light.page.locator('.timeline li[data-to="ready"]').waitFor();
  await light.shoot("file-timeline");
  await phone.go("#/recovery");
  await phone.shoot("recovery-phone");
  await dark.go("#/upkeep");
  await dark.shoot("upkeep-dark");
  await light.go("#/sweeps");
  await light.shoot("sweeps-light");

  // By hand: it wins over the system's, and stays.
  const wasLight = await background(light.page);
  await light.page.selectOption("#theme", "dark");
  check((await background(light.page)) !== wasLight, "dark by hand");
  await light.page.reload();
  await light.page.locator("#line.ok").waitFor();
  same([await background(light.page), await light.page.inputValue("#theme")], [await background(dark.page), "dark"], "and still after a reload");
  await light.page.selectOption("#theme", "light");

  // An upload of many in the picture.
  const uploader = await open();
  await uploader.signIn(tokens.operator, "#/upload");
  const release = await throttle(uploader.page, 300_000);
  await uploader.drop("#drop", ["cargo-photos.zip", "quay-camera.mp4", "stowage-plan.pdf", "port-log.txt"].map((name, at) => fileOf(name, randomBytes(300_000 * (at + 1)))));
  await until(async () => (await uploader.page.locator("progress").evaluateAll((bars) => bars.filter((bar) => bar.value > 5 && bar.value < 95).length)) >= 3, "they are under way");
  await uploader.shoot("upload");
  await release();
  await until(async () => (await uploader.page.locator('.upload[data-state="following"]').count()) === 4, "they are handed over");

  // By keyboard alone: past the frame, to the first problem, its action, its dialog, and out again.
  const keyboard = await open();
  await keyboard.signIn(tokens.operator);
  const { page } = keyboard;
  await page.locator('[data-problem="stuck"]').waitFor();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Tab");
  same(await page.evaluate(() => document.activeElement.textContent), "Skip to the content", "the first stop");
  await page.keyboard.press("Enter");
  same(await page.evaluate(() => document.activeElement.id), "main", "skipped to the content");
  for (let stops = 0; stops < 20 && !(await page.evaluate(() => document.activeElement.dataset?.action?.startsWith("retry-"))); stops += 1) await page.keyboard.press("Tab");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  same(outline, "solid", "the focus is seen");
  const action = await page.evaluate(() => document.activeElement.dataset.action);
  await page.keyboard.press("Enter");
  await page.locator("dialog[open]").waitFor();
  await keyboard.isOpenToAll("a dialog");
  await keyboard.shoot("dialog");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same(await page.evaluate(() => document.activeElement.dataset.action), action, "the focus is back where it was");
  // Events come and go under it, and it stays where it is.
  const queued = page.locator('[data-status="queued"] .step-count');
  const before = Number(await queued.innerText());
  await put(tokens.operator, "another.txt", "another");
  // Uploads of other windows may arrive meanwhile.
  const isMore = (than) => until(async () => Number(await queued.innerText()) > than, `more than ${than} are queued`);
  await isMore(before);
  same(await page.evaluate(() => document.activeElement.dataset.action), action, "the focus outlives an update");
  // What somebody has closed stays closed.
  const samples = page.locator('section[aria-labelledby="h-orphans"] details').first();
  await samples.locator("summary").click();
  same(await samples.evaluate((details) => details.open), false, "closed");
  const later = Number(await queued.innerText());
  await put(tokens.operator, "yet-another.txt", "yet another");
  await isMore(later);
  same(await samples.evaluate((details) => details.open), false, "and still, after an update");
});
