// A stage fails for good: the page shows the reason. After "Process again" a worker completes the file.

import { api, check, waitForStatus, put, same, scenario, statusOf, tokens, worker } from "./scenario.mjs";

const REFUSE = "def refuse(job):\n    raise worker.Unusable('the scanner has no signatures')\nworker.STAGES['scan'] = refuse";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user);
  const id = await put(tokens.user, "contract.txt", "Signed.");
  same(await worker(["scan"], REFUSE, true).ended, 0, "a worker that refuses");
  same(await statusOf(tokens.user, id), "failed", "by the API");

  const problem = page.locator('[data-problem="dead-letters"]');
  await problem.filter({ hasText: "the scanner has no signatures" }).waitFor();
  await page.locator(".notification", { hasText: "contract.txt" }).waitFor();
  await window.go(`#/files/${id}`);
  await page.locator(".file-error", { hasText: "The stage scan failed: the scanner has no signatures." }).waitFor();
  await window.go("#/recovery");
  await page.locator('section[aria-labelledby="h-dead-letters"] tbody tr', { hasText: "the scanner has no signatures" }).waitFor();
  const [letter] = (await api(tokens.user, "GET", "/api/v2/dlq")).body.jobs;
  const { text, outcome } = await window.act(`redrive-${letter.jobId}`);
  check(text.includes("queued again for the stage scan"), text);
  check(outcome.includes("is queued again"), outcome);
  same(await statusOf(tokens.user, id), "queued", "by the API");
  await page.locator(".placeholder", { hasText: "No file is waiting to be processed again" }).waitFor();
  same(await worker(["scan"], "", true).ended, 0, "a worker that works");
  await waitForStatus(tokens.user, id, "ready");
  await window.go("#/");
  await page.locator(".health.ok").waitFor();

  // A file that is removed from the list stays failed. The other two are processed again together.
  const more = [await put(tokens.user, "one.txt", "1"), await put(tokens.user, "two.txt", "2"), await put(tokens.user, "three.txt", "3")];
  same(await worker(["scan"], REFUSE, true).ended, 0, "refused again");
  await window.go("#/recovery");
  await page.locator("#h-dead-letters .count", { hasText: "3" }).waitFor();
  const letters = (await api(tokens.user, "GET", "/api/v2/dlq")).body.jobs;
  const of = letters.find((job) => job.fileId === more[0]);
  await page.locator(`[data-action="discard-${of.jobId}"]`).waitFor();
  check((await window.act(`discard-${of.jobId}`)).outcome.includes("stays failed"), "the message");
  same(await statusOf(tokens.user, more[0]), "failed", "it stays failed");
  await page.locator(`[data-action="discard-${of.jobId}"]`).waitFor({ state: "detached" });
  await page.locator("#h-dead-letters .count", { hasText: "2" }).waitFor();
  check((await window.act("redrive-all")).outcome.includes("2 files queued again"), "the message");
  same(await worker(["scan"], "", true).ended, 0, "a worker that works");
  for (const file of more.slice(1)) await waitForStatus(tokens.user, file, "ready");
});
