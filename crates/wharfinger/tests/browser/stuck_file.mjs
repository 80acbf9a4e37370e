// A worker is killed; the page says so, and one click sends its file on.

import { check, ends, expect, put, same, scenario, statusOf, tokens, worker } from "./stage.mjs";

const HANG = "worker.STAGES['scan'] = lambda job: time.sleep(3600)";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.operator);
  await page.locator(".verdict.ok").waitFor();

  // It takes the file, keeps its lease, and never comes to an end by itself.
  const hung = worker(["scan"], HANG);
  const id = await put(tokens.user, "ledger.txt", "Two hundred sacks.");
  await ends(tokens.user, id, "scanning");
  hung.child.kill("SIGKILL");
  same(await hung.ended, "SIGKILL", "killed");

  const problem = page.locator('[data-problem="stuck"]');
  await problem.waitFor();
  check((await problem.innerText()).includes("1 file is stuck"), await problem.innerText());
  check((await problem.innerText()).includes("its worker did not come back"), await problem.innerText());
  check((await page.title()).startsWith("(1) "), "the tab says it too");
  await page.locator("#h-stuck").waitFor();
  await window.isOpenToAll("an overview with trouble");
  const { said, outcome } = await window.act(`retry-${id}`, "#verdict");
  check(said.includes("ledger.txt"), said);
  check(outcome.includes("queued again"), outcome);
  same(await statusOf(tokens.user, id), "queued", "by the API");
  same((await expect(tokens.user, "GET", `/api/v2/files/${id}`)).retryCount, 1, "begun anew");

  same(await worker([], "", true).ended, 0, "a worker that works");
  await ends(tokens.user, id, "ready");
  await page.locator(".verdict.ok").waitFor();
  await window.go(`#/files/${id}`);
  await page.locator("#status .badge.ok").waitFor();

  // Two at once: retry all.
  const both = [await put(tokens.user, "a.txt", "a"), await put(tokens.user, "b.txt", "b")];
  const again = worker(["scan"], HANG);
  for (const file of both) await ends(tokens.user, file, "scanning");
  again.child.kill("SIGKILL");
  await again.ended;
  await window.go("#/recovery");
  await page.locator('#h-stuck .count', { hasText: "2" }).waitFor();
  await page.locator('[data-action="retry-all"]').waitFor();
  // Slowly, to see that it is under way.
  let goOn;
  const isSeen = new Promise((resolve) => (goOn = resolve));
  await page.route("**/api/v2/uploads/stuck/retry-all*", async (route) => (await isSeen, await route.continue()));
  const acted = window.act("retry-all");
  await page.locator('[data-action="retry-all"][aria-busy="true"]', { hasText: "Working" }).waitFor();
  goOn();
  const all = await acted;
  check(all.outcome.includes("2 files queued again"), all.outcome);
  same(await worker([], "", true).ended, 0, "and they go on");
  for (const file of both) await ends(tokens.user, file, "ready");
  await page.locator(".nothing", { hasText: "every file gets on" }).waitFor();
});
