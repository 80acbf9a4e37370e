// A reload in the middle of an upload, a second tab, a closed tab, and a cancel: no byte is lost, none is sent twice
// without need, and what is cancelled leaves nothing.

import { randomBytes } from "node:crypto";
import { utimesSync } from "node:fs";
import { api, check, ends, expect, fileOf, findFile, same, scenario, throttle, tokens, until } from "./stage.mjs";

// So slow that nothing arrives whole before it is interrupted, even where the browser is held up.
const SLOW = 100_000;
const FAST = 20_000_000;
const row = (window, name) => window.page.locator(`.upload[data-name="${name}"]`);
const moving = (window, name) => until(async () => {
  const value = await row(window, name).locator("progress").evaluate((bar) => bar.value, null, { timeout: 1000 }).catch(() => 0);
  return value > 2 && value < 90;
}, `${name} is on its way`);
const inits = (window) => window.requests.filter((request) => request.method() === "POST" && /\/(files\/init|batches)$/.test(request.url())).length;

await scenario(async ({ open, context }) => {
  const shared = await context();
  const first = await open({}, shared);
  await first.signIn(tokens.user, "#/upload");
  const content = randomBytes(8_000_000);
  await throttle(first.page, SLOW);
  await first.drop("#drop", [fileOf("survives.bin", content)]);
  await moving(first, "survives.bin");
  const before = await findFile(tokens.user, "survives.bin");
  same(before.status, "registered", "under way");

  await first.page.reload();
  await row(first, "survives.bin").waitFor();
  await moving(first, "survives.bin");
  same(inits(first), 1, "it is not announced again");

  // A second tab sees it and keeps its hands off.
  const second = await open({}, shared);
  await second.signIn(tokens.user, "#/upload");
  await row(second, "survives.bin").filter({ hasText: "in another tab" }).waitFor();
  same(second.requests.filter((request) => request.method() === "PUT").length, 0, "what the second tab has sent");
  // Until the first is closed. What was on its way at that moment may have arrived whole: then it is not taken again.
  second.allow(/^412 PUT /, /console: Failed to load resource.*412/);
  await first.page.close();
  await row(second, "survives.bin").locator(".badge").waitFor();
  await ends(tokens.user, before.fileId, "ready");
  same(inits(second), 0, "nor is it announced by the second");
  const answer = await fetch((await fetch(`${process.env.BASE}/api/v2/files/${before.fileId}/download`, { headers: { authorization: `Bearer ${tokens.user}` }, redirect: "manual" })).headers.get("location"));
  check(Buffer.from(await answer.arrayBuffer()).equals(content), "the very bytes");
  const left = () => second.page.evaluate(() => new Promise((resolve) => {
    const asked = indexedDB.open("wharfinger-uploads");
    asked.onsuccess = () => {
      const all = asked.result.transaction("items").objectStore("items").count();
      all.onsuccess = () => (asked.result.close(), resolve(all.result));
    };
  }));
  await until(async () => (await left()) === 0, "nothing is kept any more");

  // A batch in the middle, too.
  await throttle(second.page, SLOW);
  await second.drop("#drop", ["x.bin", "y.bin"].map((name) => fileOf(name, randomBytes(1_500_000))));
  await moving(second, "x.bin");
  await second.page.reload();
  await throttle(second.page, FAST);
  await until(async () => (await findFile(tokens.user, "y.bin")).status === "ready" && (await findFile(tokens.user, "x.bin")).status === "ready", "both are there");
  const { batchId } = await findFile(tokens.user, "x.bin");
  await until(async () => (await expect(tokens.user, "GET", `/api/v2/batches/${batchId}`)).status === "completed", "the batch is completed");
  same(inits(second), 1, "one batch");

  // The browser has lost the bytes: the same file is asked for, and no other will do.
  const loseBytes = () => second.page.evaluate(() => new Promise((resolve) => {
    const asked = indexedDB.open("wharfinger-uploads");
    asked.onsuccess = () => {
      const items = asked.result.transaction("items", "readwrite").objectStore("items");
      items.openCursor().onsuccess = ({ target: { result: cursor } }) => {
        if (!cursor) return asked.result.close(), resolve();
        cursor.update({ ...cursor.value, file: null });
        cursor.continue();
      };
    };
  }));
  const writtenAt = (path, seconds) => (utimesSync(path, seconds, seconds), path);
  await throttle(second.page, SLOW);
  const lost = randomBytes(2_000_000);
  await second.drop("#drop", [writtenAt(fileOf("lost.bin", lost), 1_700_000_000)]);
  await moving(second, "lost.bin");
  const { fileId: announced } = await findFile(tokens.user, "lost.bin");
  await loseBytes();
  await second.page.reload();
  await throttle(second.page, FAST);
  await row(second, "lost.bin").filter({ hasText: "choose the same file again" }).waitFor();
  await second.isOpenToAll("an upload without its bytes");
  const input = row(second, "lost.bin").locator("input[type=file]");
  await input.setInputFiles(fileOf("other.bin", "other"));
  await row(second, "lost.bin").filter({ hasText: "not the same file" }).waitFor();
  await input.setInputFiles(writtenAt(fileOf("lost.bin", lost), 1_700_000_000));
  await row(second, "lost.bin").locator(".badge.ok").waitFor();
  const { fileId: arrived, status } = await findFile(tokens.user, "lost.bin");
  same([arrived, status], [announced, "ready"], "lost.bin, as it was announced");

  // Of that name and size, but changed since: it is another file, and begun anew.
  await throttle(second.page, SLOW);
  await second.drop("#drop", [writtenAt(fileOf("changed.bin", randomBytes(2_000_000)), 1_700_000_000)]);
  await moving(second, "changed.bin");
  const { fileId: early } = await findFile(tokens.user, "changed.bin");
  await loseBytes();
  await second.page.reload();
  await throttle(second.page, FAST);
  await row(second, "changed.bin").filter({ hasText: "choose the same file again" }).waitFor();
  await row(second, "changed.bin").locator("input[type=file]").setInputFiles(writtenAt(fileOf("changed.bin", randomBytes(2_000_000)), 1_700_000_060));
  await row(second, "changed.bin").locator(".badge.ok").waitFor();
  check((await findFile(tokens.user, "changed.bin")).fileId !== early, "changed.bin is announced anew");
  same((await api(tokens.user, "GET", `/api/v2/files/${early}`)).status, 404, "and the earlier one is given up");

  // Cancelled on its way.
  await throttle(second.page, SLOW);
  const used = (await expect(tokens.user, "GET", "/api/v2/quota")).used;
  await second.drop("#drop", [fileOf("never.bin", randomBytes(8_000_000))]);
  await moving(second, "never.bin");
  const { fileId } = await findFile(tokens.user, "never.bin");
  // No is no, and it goes on meanwhile.
  await row(second, "never.bin").getByRole("button", { name: "Cancel" }).click();
  await second.page.locator("dialog button", { hasText: "Go on" }).click();
  await second.page.locator("dialog").waitFor({ state: "detached" });
  same(await row(second, "never.bin").getAttribute("data-state"), "sending", "never.bin");
  await row(second, "never.bin").getByRole("button", { name: "Cancel" }).click();
  await second.page.locator("dialog button[type=submit]", { hasText: "Cancel the upload" }).click();
  await second.page.locator(".toast", { hasText: "is cancelled" }).waitFor();
  await row(second, "never.bin").filter({ hasText: "Cancelled" }).waitFor();
  await until(async () => (await api(tokens.user, "GET", `/api/v2/files/${fileId}`)).status === 404, "it is deleted");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).used, used, "its room is free again");
  await until(async () => (await left()) === 0, "nothing is kept");
  await second.page.reload();
  await second.page.locator(".nothing", { hasText: "Nothing yet" }).waitFor();
});
