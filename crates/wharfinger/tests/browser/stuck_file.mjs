// A worker is killed: the page shows its stuck file, and one click queues it again.

import { check, waitForStatus, expect, put, same, scenario, statusOf, tokens, worker } from "./scenario.mjs";

const HANG = "worker.STAGES['scan'] = lambda job: time.sleep(3600)";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.operator);
  await page.locator(".health.ok").waitFor();

  // This worker takes the file and never finishes.
  const hung = worker(["scan"], HANG);
  const id = await put(tokens.user, "ledger.txt", "Two hundred sacks.");
  await waitForStatus(tokens.user, id, "scanning");
  hung.child.kill("SIGKILL");
  same(await hung.ended, "SIGKILL", "killed");

  const problem = page.locator('[data-problem="stuck"]');
  await problem.waitFor();
  check((await problem.innerText()).includes("1 file is stuck"), await problem.innerText());
  check((await problem.innerText()).includes("its worker stopped sending heartbeats"), await problem.innerText());
  check((await page.title()).startsWith("(1) "), "the title of the tab counts the problem");
  await page.locator("#h-stuck").waitFor();
  await window.checkAccessibility("an overview with a problem");
  const { text, outcome } = await window.act(`retry-${id}`, "#health");
  check(text.includes("ledger.txt"), text);
  check(outcome.includes("queued again"), outcome);
  same(await statusOf(tokens.user, id), "queued", "by the API");
  same((await expect(tokens.user, "GET", `/api/v2/files/${id}`)).retryCount, 1, "recoveries");

  same(await worker([], "", true).ended, 0, "a worker that works");
  await waitForStatus(tokens.user, id, "ready");
  await page.locator(".health.ok").waitFor();
  await window.go(`#/files/${id}`);
  await page.locator("#status .badge.ok").waitFor();

  // Retry two files together.
  const both = [await put(tokens.user, "a.txt", "a"), await put(tokens.user, "b.txt", "b")];
  const again = worker(["scan"], HANG);
  for (const file of both) await waitForStatus(tokens.user, file, "scanning");
  again.child.kill("SIGKILL");
  await again.ended;
  await window.go("#/recovery");
  await page.locator('#h-stuck .count', { hasText: "2" }).waitFor();
  await page.locator('[data-action="retry-all"]').waitFor();
  // The call is held back, to check what the button shows meanwhile.
  let release;
  const isReleased = new Promise((resolve) => (release = resolve));
  await page.route("**/api/v2/uploads/stuck/retry-all*", async (route) => (await isReleased, await route.continue()));
  const acted = window.act("retry-all");
  await page.locator('[data-action="retry-all"][aria-busy="true"]', { hasText: "Working" }).waitFor();
  release();
  const all = await acted;
  check(all.outcome.includes("2 files queued again"), all.outcome);
  same(await worker([], "", true).ended, 0, "a worker that works");
  for (const file of both) await waitForStatus(tokens.user, file, "ready");
  await page.locator(".placeholder", { hasText: "All files are being processed" }).waitFor();
});
