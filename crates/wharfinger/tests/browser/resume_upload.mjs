// A reload during an upload, a second tab, a closed tab, and a cancelled upload: no bytes are lost, and a cancelled upload
// leaves nothing behind.

import { randomBytes } from "node:crypto";
import { utimesSync } from "node:fs";
import { api, check, waitForStatus, expect, fileOf, findFile, same, scenario, throttle, tokens, until } from "./scenario.mjs";

// Slow enough that no upload is complete before it is interrupted, even on a slow machine.
const SLOW = 100_000;
const FAST = 20_000_000;
const row = (window, name) => window.page.locator(`.upload[data-name="${name}"]`);
const isSending = (window, name) => until(async () => {
  const value = await row(window, name).locator("progress").evaluate((bar) => bar.value, null, { timeout: 1000 }).catch(() => 0);
  return value > 2 && value < 90;
}, `${name} is being sent`);
const registrations = (window) => window.requests.filter((request) => request.method() === "POST" && /\/(files\/init|batches)$/.test(request.url())).length;

await scenario(async ({ open, context }) => {
  const shared = await context();
  const first = await open({}, shared);
  await first.signIn(tokens.user, "#/upload");
  const content = randomBytes(8_000_000);
  await throttle(first.page, SLOW);
  await first.drop("#drop", [fileOf("survives.bin", content)]);
  await isSending(first, "survives.bin");
  const before = await findFile(tokens.user, "survives.bin");
  same(before.status, "registered", "the status during the upload");

  await first.page.reload();
  await row(first, "survives.bin").waitFor();
  await isSending(first, "survives.bin");
  same(registrations(first), 1, "registrations after the reload");

  // A second tab shows the upload and does not touch it.
  const second = await open({}, shared);
  await second.signIn(tokens.user, "#/upload");
  await row(second, "survives.bin").filter({ hasText: "Uploading in another tab" }).waitFor();
  same(second.requests.filter((request) => request.method() === "PUT").length, 0, "requests of the second tab");
  // When the first tab is closed, the second one continues. A request of the first may have been complete: then it gets 412.
  second.allow(/^412 PUT /, /console: Failed to load resource.*412/);
  await first.page.close();
  await row(second, "survives.bin").locator(".badge").waitFor();
  await waitForStatus(tokens.user, before.fileId, "ready");
  same(registrations(second), 0, "registrations by the second tab");
  const answer = await fetch((await fetch(`${process.env.BASE}/api/v2/files/${before.fileId}/download`, { headers: { authorization: `Bearer ${tokens.user}` }, redirect: "manual" })).headers.get("location"));
  check(Buffer.from(await answer.arrayBuffer()).equals(content), "the downloaded bytes");
  const countStored = () => second.page.evaluate(() => new Promise((resolve) => {
    const request = indexedDB.open("wharfinger-uploads");
    request.onsuccess = () => {
      const count = request.result.transaction("items").objectStore("items").count();
      count.onsuccess = () => (request.result.close(), resolve(count.result));
    };
  }));
  await until(async () => (await countStored()) === 0, "no upload is stored any more");

  // A reload during the upload of a batch.
  await throttle(second.page, SLOW);
  await second.drop("#drop", ["x.bin", "y.bin"].map((name) => fileOf(name, randomBytes(1_500_000))));
  await isSending(second, "x.bin");
  await second.page.reload();
  await throttle(second.page, FAST);
  await until(async () => (await findFile(tokens.user, "y.bin")).status === "ready" && (await findFile(tokens.user, "x.bin")).status === "ready", "both are ready");
  const { batchId } = await findFile(tokens.user, "x.bin");
  await until(async () => (await expect(tokens.user, "GET", `/api/v2/batches/${batchId}`)).status === "completed", "the batch is completed");
  same(registrations(second), 1, "registrations of the batch");

  // The browser has lost the bytes: the page asks for the same file and accepts no other.
  const loseBytes = () => second.page.evaluate(() => new Promise((resolve) => {
    const request = indexedDB.open("wharfinger-uploads");
    request.onsuccess = () => {
      const items = request.result.transaction("items", "readwrite").objectStore("items");
      items.openCursor().onsuccess = ({ target: { result: cursor } }) => {
        if (!cursor) return request.result.close(), resolve();
        cursor.update({ ...cursor.value, file: null });
        cursor.continue();
      };
    };
  }));
  const withTime = (path, seconds) => (utimesSync(path, seconds, seconds), path);
  await throttle(second.page, SLOW);
  const lost = randomBytes(2_000_000);
  await second.drop("#drop", [withTime(fileOf("lost.bin", lost), 1_700_000_000)]);
  await isSending(second, "lost.bin");
  const { fileId: registered } = await findFile(tokens.user, "lost.bin");
  await loseBytes();
  await second.page.reload();
  await throttle(second.page, FAST);
  await row(second, "lost.bin").filter({ hasText: "choose the same file again" }).waitFor();
  await second.checkAccessibility("an upload without its bytes");
  const input = row(second, "lost.bin").locator("input[type=file]");
  await input.setInputFiles(fileOf("other.bin", "other"));
  await row(second, "lost.bin").filter({ hasText: "This is not the same file" }).waitFor();
  await input.setInputFiles(withTime(fileOf("lost.bin", lost), 1_700_000_000));
  await row(second, "lost.bin").locator(".badge.ok").waitFor();
  const { fileId: arrived, status } = await findFile(tokens.user, "lost.bin");
  same([arrived, status], [registered, "ready"], "lost.bin continues as the same file");

  // A file with the same name and size that was changed since: it is uploaded as a new file.
  await throttle(second.page, SLOW);
  await second.drop("#drop", [withTime(fileOf("changed.bin", randomBytes(2_000_000)), 1_700_000_000)]);
  await isSending(second, "changed.bin");
  const { fileId: early } = await findFile(tokens.user, "changed.bin");
  await loseBytes();
  await second.page.reload();
  await throttle(second.page, FAST);
  await row(second, "changed.bin").filter({ hasText: "choose the same file again" }).waitFor();
  await row(second, "changed.bin").locator("input[type=file]").setInputFiles(withTime(fileOf("changed.bin", randomBytes(2_000_000)), 1_700_000_060));
  await row(second, "changed.bin").locator(".badge.ok").waitFor();
  check((await findFile(tokens.user, "changed.bin")).fileId !== early, "changed.bin is a new file");
  same((await api(tokens.user, "GET", `/api/v2/files/${early}`)).status, 404, "the earlier upload is deleted");

  // Cancelled during the upload.
  await throttle(second.page, SLOW);
  const used = (await expect(tokens.user, "GET", "/api/v2/quota")).used;
  await second.drop("#drop", [fileOf("never.bin", randomBytes(8_000_000))]);
  await isSending(second, "never.bin");
  const { fileId } = await findFile(tokens.user, "never.bin");
  // "Keep uploading" closes the dialog, and the upload continues.
  await row(second, "never.bin").getByRole("button", { name: "Cancel" }).click();
  await second.page.locator("dialog button", { hasText: "Keep uploading" }).click();
  await second.page.locator("dialog").waitFor({ state: "detached" });
  same(await row(second, "never.bin").getAttribute("data-state"), "sending", "never.bin");
  await row(second, "never.bin").getByRole("button", { name: "Cancel" }).click();
  await second.page.locator("dialog button[type=submit]", { hasText: "Cancel upload" }).click();
  await second.page.locator(".toast", { hasText: "is cancelled" }).waitFor();
  await row(second, "never.bin").filter({ hasText: "Cancelled" }).waitFor();
  await until(async () => (await api(tokens.user, "GET", `/api/v2/files/${fileId}`)).status === 404, "the file is deleted");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).used, used, "the quota is released");
  await until(async () => (await countStored()) === 0, "no upload is stored");
  await second.page.reload();
  await second.page.locator(".placeholder", { hasText: "No uploads yet" }).waitFor();
});
