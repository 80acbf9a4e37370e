// Uploads files by drag and drop until they are ready, without a reload. Opens, downloads and deletes a file.

import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { api, check, waitForStatus, expect, fileOf, findFile, place, put, same, scenario, throttle, tokens, until } from "./scenario.mjs";

const HOSTILE = "<img src=x onerror=alert(1)> & \"quotes\" 'n' $(true).txt";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user);
  const ready = page.locator('[data-status="ready"] .step-count');
  same(await ready.innerText(), "0", "ready files at the start");
  await page.evaluate(() => (globalThis.isSamePage = true));

  await window.go("#/upload");
  const text = "This is the annual report. Ada has signed all its pages.\n".repeat(30_000);
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
  }, "the progress bar moves");
  check((await row.locator(".upload-state").innerText()).includes("of 1.63 MiB"), "the sent and the total size");
  check(await bar.isVisible(), "the progress bar is visible");
  await window.checkAccessibility("a running upload");
  await window.screenshot("upload-one");
  await release();
  await row.locator(".badge.ok", { hasText: "ready" }).waitFor();
  const ledger = await findFile(tokens.user, "ledger.txt");
  same([ledger.status, ledger.size, ledger.contentType], ["ready", text.length, "text/plain"], "the file on the server");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).reserved, 0, "reserved bytes");

  // A file that is dropped outside the box does not replace the page.
  const isStopped = await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["x"], "outside.txt"));
    const event = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer });
    document.querySelector("h1").dispatchEvent(event);
    return event.defaultPrevented;
  });
  check(isStopped, "the browser does not open a file that is dropped outside the box");

  // Several files together are one batch, and a file name is never parsed as markup.
  window.requests.length = 0;
  await window.drop("#drop", [fileOf(HOSTILE, "a name"), fileOf("bill.md", "# Bill\nTen sacks."), fileOf("empty.txt", "")]);
  for (const name of [HOSTILE, "bill.md", "empty.txt"]) await page.locator(".upload .name", { hasText: name }).waitFor();
  await until(async () => (await page.locator('.upload[data-state="done"]').count()) === 4, "all are ready");
  const calls = window.requests.map((request) => `${request.method()} ${new URL(request.url()).pathname}`);
  const lastConfirm = calls.findLastIndex((call) => call.endsWith("/confirm"));
  check(!calls.slice(0, lastConfirm).some((call) => call.startsWith("GET /api/v2/batches/")), "the batch is not polled before all its files are sent");
  const hostile = await findFile(tokens.user, HOSTILE);
  check(hostile.batchId, "the file belongs to a batch");
  const batch = await until(async () => {
    const found = await expect(tokens.user, "GET", `/api/v2/batches/${hostile.batchId}`);
    return found.status === "completed" && found;
  }, "the batch is completed");
  same(batch.files.length, 3, "files of the batch");
  same(await page.locator("main img").count(), 0, "images created by a file name");

  // A folder with a subfolder: each file has its name, and its path in the metadata.
  mkdirSync(join(place, "trip/day-1"), { recursive: true });
  await window.drop("#drop", [(fileOf("trip/log.txt", "Cast off."), fileOf("trip/day-1/notes.txt", "Fog."), join(place, "trip"))]);
  for (const name of ["log.txt", "notes.txt"]) await page.locator(`.upload[data-name="${name}"] .badge.ok`).waitFor();
  same((await findFile(tokens.user, "notes.txt")).metadata, { path: "trip/day-1/notes.txt" }, "the path in the metadata");
  for (const name of ["log.txt", "notes.txt"]) await expect(tokens.user, "DELETE", `/api/v2/files/${(await findFile(tokens.user, name)).fileId}`);

  await window.go("#/");
  await ready.filter({ hasText: "4" }).waitFor();
  await page.locator(".health.ok", { hasText: "No problems" }).waitFor();
  await page.locator(".notification", { hasText: HOSTILE }).first().waitFor();
  same(await page.evaluate(() => globalThis.isSamePage), true, "the page was not reloaded");

  // The page of the file.
  await window.go("#/files");
  await page.locator("a.name", { hasText: "ledger.txt" }).click();
  await page.locator('.timeline li[data-to="ready"]').waitFor();
  const shown = await page.locator(".timeline li").evaluateAll((lines) => lines.map((line) => line.dataset.to));
  const history = await expect(tokens.user, "GET", `/api/v2/files/${ledger.fileId}/history`);
  same(shown, history.events.map((event) => event.to), "the history");
  await page.locator("#h-text ~ *, .hits", { hasText: "Ada has signed all its pages" }).first().waitFor();
  await window.checkAccessibility("a file's page");
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  const download = await downloading;
  same(download.suggestedFilename(), "ledger.txt", "the name of the download");
  check(readFileSync(await download.path(), "utf8") === text, "the downloaded bytes");

  // Escape cancels the delete, the button confirms it.
  await page.locator(`[data-action="delete-${ledger.fileId}"]`).click();
  check((await page.locator("#dialog-text").innerText()).includes("ledger.txt"), "the dialog names the file");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same((await api(tokens.user, "GET", `/api/v2/files/${ledger.fileId}`)).status, 200, "the file still exists");
  same(await page.evaluate(() => document.activeElement.dataset.action), `delete-${ledger.fileId}`, "the focus after the dialog");
  const { outcome } = await window.act(`delete-${ledger.fileId}`);
  check(outcome.includes("is deleted"), outcome);
  await page.waitForURL(/#\/files$/);
  await page.locator("a.name", { hasText: "bill.md" }).waitFor();
  same(await page.locator("a.name", { hasText: "ledger.txt" }).count(), 0, "rows of the deleted file");
  same((await api(tokens.user, "GET", `/api/v2/files/${ledger.fileId}`)).status, 404, "the deleted file");

  // The search finds another file.
  await page.fill("#query", "ten sacks");
  await page.keyboard.press("Enter");
  await page.locator(".hits .name", { hasText: "bill.md" }).waitFor();

  // A busy server and a broken connection: the upload is retried.
  window.allow(/^503 POST .*\/files\/init/, /console: Failed to load resource.*503/, /(failed: POST|console:).*\/confirm/);
  await page.route("**/api/v2/files/init", (route) => route.fulfill({ status: 503, headers: { "retry-after": "1" }, contentType: "application/problem+json", body: JSON.stringify({ code: "unavailable", detail: "busy" }) }), { times: 1 });
  await page.route("**/confirm", (route) => route.abort("connectionreset"), { times: 1 });
  await window.go("#/upload");
  await window.drop("#drop", [fileOf("patient.txt", "Waits.")]);
  await page.locator('.upload[data-name="patient.txt"] .badge.ok').waitFor();

  // The completion of a batch is retried too.
  window.allow(/^503 POST .*\/complete/);
  await page.route("**/api/v2/batches/*/complete", (route) => route.fulfill({ status: 503, contentType: "application/problem+json", body: JSON.stringify({ code: "unavailable", detail: "busy" }) }), { times: 1 });
  await window.drop("#drop", [fileOf("first.txt", "One."), fileOf("second.txt", "Two.")]);
  for (const name of ["first", "second"]) await page.locator(`.upload[data-name="${name}.txt"] .badge.ok`).waitFor();
  await until(async () => (await api(tokens.user, "GET", "/api/v2/uploads/dashboard")).body.activeBatches === 0, "the batch is complete");

  // A refused upload shows the reason.
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1000 });
  await window.go("#/upload");
  window.allow(/^403 POST .*\/files\/init/, /console: Failed to load resource.*403/);
  await window.drop("#drop", [fileOf("large.txt", "x".repeat(5000))]);
  const large = page.locator('.upload[data-name="large.txt"]');
  await large.locator(".error").filter({ hasText: "Quota exceeded: this upload needs 4.88 KiB" }).waitFor();
  // The error is still shown after a reload, and the upload is not retried automatically.
  window.requests.length = 0;
  await page.reload();
  await large.locator(".error").filter({ hasText: "Quota exceeded" }).waitFor();
  same(window.requests.filter((request) => request.url().endsWith("/files/init")).length, 0, "registrations after the reload");
  await expect(tokens.operator, "PUT", "/api/v2/tenants/acme/quota", { limit: 1_000_000 });
  await large.getByRole("button", { name: "Try again: large.txt" }).click();
  await large.locator(".badge.ok").waitFor();
  await waitForStatus(tokens.user, (await findFile(tokens.user, "large.txt")).fileId, "ready");

  // A picture is stored, and its page says so. An empty file is not a type without text.
  const picture = Buffer.concat([Buffer.from("ffd8ffe000104a46494600", "hex"), Buffer.from(Uint32Array.from({ length: 2000 }, (_, n) => n * 40503).buffer)]);
  for (const [name, bytes, type, said] of [["photo.jpg", picture, "image/jpeg", "Stored. This type has no text to search."], ["blank.txt", "", "text/plain", "Stored. This file has no text to search."]]) {
    const id = await put(tokens.user, name, bytes, type);
    await waitForStatus(tokens.user, id, "ready");
    await window.go(`#/files/${id}`);
    await page.locator(".hint", { hasText: said }).waitFor();
    await page.locator('section[aria-labelledby="h-text"] .placeholder', { hasText: said }).waitFor();
    if (name === "photo.jpg") await window.screenshot("picture");
  }
});
