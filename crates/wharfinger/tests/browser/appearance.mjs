// The appearance and accessibility of every page: light and dark theme, desktop and phone, keyboard only, and axe's rules.
// The server has files in every state. The README's screenshots are taken here.

import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { check, waitForStatus, expect, fileOf, place, put, same, scenario, throttle, tokens, until, worker } from "./scenario.mjs";

const PAGES = ["#/", "#/files", "#/upload", "#/recovery", "#/maintenance", "#/sweeps", "#/sweeps/orphan-cleanup", "#/notifications"];
const NAMES = ["invoice-4711.txt", "annual-report-2026.md", "staff-list.csv", "price-table.txt", "delivery-note-80.txt", "customs-declaration.md", "inspection-7.txt", "insurance-policy.txt"];
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

/** Creates files that are ready, failed and quarantined, one that is stuck, and one whose bytes are missing. */
async function createFiles() {
  const done = [];
  for (const [at, name] of NAMES.entries()) done.push(await put(tokens.user, name, `Document ${at}. It has some text for the search.\n`.repeat(40 * (at + 1))));
  for (let at = 0; at < 24; at += 1) done.push(await put(tokens.operator, `invoice-${1000 + at}.txt`, `Invoice ${at}: ${"ten boxes of paper ".repeat(20)}`));
  same(await worker([], "", true).ended, 0, "scanned");
  for (const id of done) await waitForStatus(tokens.operator, id, "ready");
  const binary = await put(tokens.user, "blueprint.bin", randomBytes(4000), "application/octet-stream");
  const eicar = ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR", "-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"].join("");
  const infected = await put(tokens.user, "free-screensaver.txt", eicar);
  const refuse = "def refuse(job):\n    raise worker.Unusable('the file is encrypted')\nworker.STAGES['extract'] = refuse";
  same(await worker([], refuse, true).ended, 0, "scanned");
  await waitForStatus(tokens.operator, binary, "failed");
  await waitForStatus(tokens.operator, infected, "quarantined");
  const hung = worker(["scan"], "worker.STAGES['scan'] = lambda job: time.sleep(3600)");
  const stuck = await put(tokens.user, "ledger-2026-q3.txt", "Two hundred entries.");
  await waitForStatus(tokens.user, stuck, "scanning");
  hung.child.kill("SIGKILL");
  await hung.ended;
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 70_000 });
  // An object is deleted behind the server's back: the next scan reports it.
  const { events } = await expect(tokens.operator, "GET", `/api/v2/files/${done[1]}/history`);
  check(events.length > 3, "it has a history");
  rmSync(join(place, "wharfinger-data/blobs/uploads/acme/ada", done[1]));
  await expect(tokens.operator, "POST", "/api/v2/maintenance/sweeps/orphan-cleanup/run", { dryRun: false });
  return { withHistory: done[0] };
}

/** The page must not need horizontal scrolling. */
async function checkWidth({ page }, where) {
  const [content, viewport] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  check(content <= viewport, `${where} is ${content} pixels wide in ${viewport}`);
}

await scenario(async ({ open }) => {
  const { withHistory } = await createFiles();
  const light = await open();
  await light.signIn(tokens.operator);
  for (const key of ["stuck", "dead-letters", "missing", "quota-acme"]) await light.page.locator(`[data-problem="${key}"]`).waitFor();
  await light.page.locator("#h-stuck").waitFor();
  for (let at = 0; at < 5; at += 1) await put(tokens.user, `arrivals-${at}.txt`, `Arrival ${at}`);
  await light.page.locator('[data-status="queued"] .step-count', { hasText: "5" }).waitFor();
  await light.screenshot("overview-light");
  await light.screenshot("overview-light-whole", true);

  const dark = await open({ colorScheme: "dark" });
  await dark.signIn(tokens.operator);
  await dark.page.locator('[data-problem="missing"]').waitFor();
  check((await background(light.page)) !== (await background(dark.page)), "the theme of the system is used");
  await dark.screenshot("overview-dark");
  const phone = await open({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
  await phone.signIn(tokens.operator);
  await phone.page.locator('[data-problem="missing"]').waitFor();
  await phone.screenshot("overview-phone");

  for (const [window, name] of [[light, "light"], [dark, "dark"], [phone, "phone"]]) {
    for (const hash of [...PAGES, `#/files/${withHistory}`]) {
      await window.go(hash);
      await until(async () => (await window.page.locator(".placeholder", { hasText: "Loading" }).count()) === 0, `${hash} is loaded`);
      await window.checkAccessibility(`${hash} (${name})`);
      await checkWidth(window, `${hash} (${name})`);
    }
  }
  await light.go(`#/files/${withHistory}`);
  await light.page.locator('.timeline li[data-to="ready"]').waitFor();
  await light.screenshot("file-timeline");
  await phone.go("#/recovery");
  await phone.screenshot("recovery-phone");
  await dark.go("#/maintenance");
  await dark.screenshot("maintenance-dark");
  await light.go("#/sweeps");
  await light.screenshot("sweeps-light");

  // A theme that the user has chosen replaces the theme of the system, also after a reload.
  const wasLight = await background(light.page);
  await light.page.selectOption("#theme", "dark");
  check((await background(light.page)) !== wasLight, "the dark theme was chosen");
  await light.page.reload();
  await light.page.locator("#connection.ok").waitFor();
  same([await background(light.page), await light.page.inputValue("#theme")], [await background(dark.page), "dark"], "the theme after a reload");
  await light.page.selectOption("#theme", "light");

  // An upload of several files.
  const uploader = await open();
  await uploader.signIn(tokens.operator, "#/upload");
  const release = await throttle(uploader.page, 300_000);
  await uploader.drop("#drop", ["photos.zip", "camera.mp4", "floor-plan.pdf", "access-log.txt"].map((name, at) => fileOf(name, randomBytes(300_000 * (at + 1)))));
  await until(async () => (await uploader.page.locator("progress").evaluateAll((bars) => bars.filter((bar) => bar.value > 5 && bar.value < 95).length)) >= 3, "three uploads are running");
  await uploader.screenshot("upload");
  await release();
  await until(async () => (await uploader.page.locator('.upload[data-state="processing"]').count()) === 4, "all uploads are sent");

  // Keyboard only: skip the header, reach the first problem, open the dialog of its action, and leave it.
  const keyboard = await open();
  await keyboard.signIn(tokens.operator);
  const { page } = keyboard;
  await page.locator('[data-problem="stuck"]').waitFor();
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("Tab");
  same(await page.evaluate(() => document.activeElement.textContent), "Skip to main content", "the first stop");
  await page.keyboard.press("Enter");
  same(await page.evaluate(() => document.activeElement.id), "main", "the focus after the skip link");
  for (let stops = 0; stops < 20 && !(await page.evaluate(() => document.activeElement.dataset?.action?.startsWith("retry-"))); stops += 1) await page.keyboard.press("Tab");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  same(outline, "solid", "the outline of the focus");
  const action = await page.evaluate(() => document.activeElement.dataset.action);
  await page.keyboard.press("Enter");
  await page.locator("dialog[open]").waitFor();
  await keyboard.checkAccessibility("a dialog");
  await keyboard.screenshot("dialog");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same(await page.evaluate(() => document.activeElement.dataset.action), action, "the focus after the dialog");
  // Updates of the page do not move the focus.
  const queued = page.locator('[data-status="queued"] .step-count');
  const before = Number(await queued.innerText());
  await put(tokens.operator, "another.txt", "another");
  // Uploads of the other window may be queued meanwhile.
  const isMore = (than) => until(async () => Number(await queued.innerText()) > than, `more than ${than} are queued`);
  await isMore(before);
  same(await page.evaluate(() => document.activeElement.dataset.action), action, "the focus after an update");
  // A section that the user has closed stays closed.
  const samples = page.locator('section[aria-labelledby="h-orphans"] details').first();
  await samples.locator("summary").click();
  same(await samples.evaluate((details) => details.open), false, "open after the click");
  const later = Number(await queued.innerText());
  await put(tokens.operator, "yet-another.txt", "yet another");
  await isMore(later);
  same(await samples.evaluate((details) => details.open), false, "open after an update");
});
