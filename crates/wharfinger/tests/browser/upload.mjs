// From a file on the disk to a file that is ready, without a reload; its own page; and its end.

import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { api, check, ends, expect, fileOf, findFile, place, same, scenario, throttle, tokens, until } from "./stage.mjs";

const HOSTILE = "<img src=x onerror=alert(1)> & \"quotes\" 'n' $(true).txt";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user);
  const ready = page.locator('[data-status="ready"] .step-count');
  same(await ready.innerText(), "0", "nothing is there yet");
  const loadedOnce = await page.evaluate(() => (globalThis.isSamePage = true));
  check(loadedOnce, "marked");

  await window.go("#/upload");
  const text = "The wharfinger keeps the quay. Ada signed for the coffee.\n".repeat(30_000);
  const release = await throttle(page, 150_000);
  await window.drop("#drop", [fileOf("ledger.txt", text)]);
  const row = page.locator('.upload[data-name="ledger.txt"]');
  const bar = row.locator("progress");
  await bar.waitFor();
  const seen = new Set();
  await until(async () => {
    const value = await bar.evaluate((progress) => progress.value).catch(() => 100);
    if (value > 0 && value < 100) seen.add(value);
    return seen.size >= 3;
  }, "the bar moves");
  check((await row.locator(".upload-state").innerText()).includes("of 1.66 MiB"), "how much of how much");
  check(await bar.isVisible(), "the bar is seen");
  await window.isOpenToAll("an upload under way");
  await window.shoot("upload-one");
  await release();
  await row.locator(".badge.ok", { hasText: "ready" }).waitFor();
  const ledger = await findFile(tokens.user, "ledger.txt");
  same([ledger.status, ledger.size, ledger.contentType], ["ready", text.length, "text/plain"], "what the server has");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).reserved, 0, "nothing is left reserved");

  // Beside the box: the page stays.
  const isStopped = await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["x"], "beside.txt"));
    const event = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer });
    document.querySelector("h1").dispatchEvent(event);
    return event.defaultPrevented;
  });
  check(isStopped, "a file that is dropped beside the box is not opened in place of the page");

  // Several at once are one batch, and names are only ever text.
  window.requests.length = 0;
  await window.drop("#drop", [fileOf(HOSTILE, "a name"), fileOf("bill.md", "# Bill\nTen sacks."), fileOf("empty.txt", "")]);
  for (const name of [HOSTILE, "bill.md", "empty.txt"]) await page.locator(".upload .name", { hasText: name }).waitFor();
  await until(async () => (await page.locator('.upload[data-state="done"]').count()) === 4, "all are through");
  const calls = window.requests.map((request) => `${request.method()} ${new URL(request.url()).pathname}`);
  const lastConfirm = calls.findLastIndex((call) => call.endsWith("/confirm"));
  check(!calls.slice(0, lastConfirm).some((call) => call.startsWith("GET /api/v2/batches/")), "the batch is not asked for while something of it is left to send");
  const hostile = await findFile(tokens.user, HOSTILE);
  check(hostile.batchId, "of a batch");
  const batch = await until(async () => {
    const found = await expect(tokens.user, "GET", `/api/v2/batches/${hostile.batchId}`);
    return found.status === "completed" && found;
  }, "the batch is completed");
  same(batch.files.length, 3, "files of the batch");
  same(await page.locator("main img").count(), 0, "pictures that a name has made");

  // A folder with one inside: each file has its name, and its path beside it.
  mkdirSync(join(place, "trip/day-1"), { recursive: true });
  await window.drop("#drop", [(fileOf("trip/log.txt", "Cast off."), fileOf("trip/day-1/notes.txt", "Fog."), join(place, "trip"))]);
  for (const name of ["log.txt", "notes.txt"]) await page.locator(`.upload[data-name="${name}"] .badge.ok`).waitFor();
  same((await findFile(tokens.user, "notes.txt")).metadata, { path: "trip/day-1/notes.txt" }, "where it was");
  for (const name of ["log.txt", "notes.txt"]) await expect(tokens.user, "DELETE", `/api/v2/files/${(await findFile(tokens.user, name)).fileId}`);

  await window.go("#/");
  await ready.filter({ hasText: "4" }).waitFor();
  await page.locator(".verdict.ok", { hasText: "All is well" }).waitFor();
  await page.locator(".notice", { hasText: HOSTILE }).first().waitFor();
  same(await page.evaluate(() => globalThis.isSamePage), true, "without a reload");

  // Its own page.
  await window.go("#/files");
  await page.locator("a.name", { hasText: "ledger.txt" }).click();
  await page.locator('.timeline li[data-to="ready"]').waitFor();
  const way = await page.locator(".timeline li").evaluateAll((lines) => lines.map((line) => line.dataset.to));
  const history = await expect(tokens.user, "GET", `/api/v2/files/${ledger.fileId}/history`);
  same(way, history.events.map((event) => event.to), "the history");
  await page.locator("#h-text ~ *, .hits", { hasText: "Ada signed for the coffee" }).first().waitFor();
  await window.isOpenToAll("a file's page");
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const download = await downloading;
  same(download.suggestedFilename(), "ledger.txt", "its name");
  check(readFileSync(await download.path(), "utf8") === text, "the very bytes");

  // No is no; yes is yes.
  await page.locator(`[data-action="delete-${ledger.fileId}"]`).click();
  check((await page.locator("#dialog-says").innerText()).includes("ledger.txt"), "it says which");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same((await api(tokens.user, "GET", `/api/v2/files/${ledger.fileId}`)).status, 200, "still there");
  same(await page.evaluate(() => document.activeElement.dataset.action), `delete-${ledger.fileId}`, "the focus is back");
  const { outcome } = await window.act(`delete-${ledger.fileId}`);
  check(outcome.includes("is deleted"), outcome);
  await page.waitForURL(/#\/files$/);
  await page.locator("a.name", { hasText: "bill.md" }).waitFor();
  same(await page.locator("a.name", { hasText: "ledger.txt" }).count(), 0, "gone from the list");
  same((await api(tokens.user, "GET", `/api/v2/files/${ledger.fileId}`)).status, 404, "gone");

  // The search finds what is left.
  await page.fill("#query", "ten sacks");
  await page.keyboard.press("Enter");
  await page.locator(".hits .name", { hasText: "bill.md" }).waitFor();

  // A server that is busy for a moment, and a line that breaks: it is tried again.
  window.allow(/^503 POST .*\/files\/init/, /console: Failed to load resource.*503/, /(failed: POST|console:).*\/confirm/);
  await page.route("**/api/v2/files/init", (route) => route.fulfill({ status: 503, headers: { "retry-after": "1" }, contentType: "application/problem+json", body: JSON.stringify({ code: "unavailable", detail: "busy" }) }), { times: 1 });
  await page.route("**/confirm", (route) => route.abort("connectionreset"), { times: 1 });
  await window.go("#/upload");
  await window.drop("#drop", [fileOf("patient.txt", "Waits.")]);
  await page.locator('.upload[data-name="patient.txt"] .badge.ok').waitFor();

  // So is the end of a batch.
  window.allow(/^503 POST .*\/complete/);
  await page.route("**/api/v2/batches/*/complete", (route) => route.fulfill({ status: 503, contentType: "application/problem+json", body: JSON.stringify({ code: "unavailable", detail: "busy" }) }), { times: 1 });
  await window.drop("#drop", [fileOf("first.txt", "One."), fileOf("second.txt", "Two.")]);
  for (const name of ["first", "second"]) await page.locator(`.upload[data-name="${name}.txt"] .badge.ok`).waitFor();
  await until(async () => (await api(tokens.user, "GET", "/api/v2/uploads/dashboard")).body.activeBatches === 0, "the batch is complete");

  // Words of a refusal are words.
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1000 });
  await window.go("#/upload");
  window.allow(/^403 POST .*\/files\/init/, /console: Failed to load resource.*403/);
  await window.drop("#drop", [fileOf("large.txt", "x".repeat(5000))]);
  const large = page.locator('.upload[data-name="large.txt"]');
  await large.locator(".wrong").filter({ hasText: "not enough room: 4.88 KiB were asked for" }).waitFor();
  // It is there after a reload, and not begun again unasked.
  window.requests.length = 0;
  await page.reload();
  await large.locator(".wrong").filter({ hasText: "not enough room" }).waitFor();
  same(window.requests.filter((request) => request.url().endsWith("/files/init")).length, 0, "announced by the reload");
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1_000_000 });
  await large.getByRole("button", { name: "Try again: large.txt" }).click();
  await large.locator(".badge.ok").waitFor();
  await ends(tokens.user, (await findFile(tokens.user, "large.txt")).fileId, "ready");
});
