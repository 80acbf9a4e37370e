// A stage gives up on a file; its reason is on the page, and after the redrive a worker takes it through.

import { api, check, ends, put, same, scenario, statusOf, tokens, worker } from "./stage.mjs";

const REFUSE = "def refuse(job):\n    raise worker.Unusable('the scanner has no signatures')\nworker.STAGES['scan'] = refuse";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user);
  const id = await put(tokens.user, "contract.txt", "Signed.");
  same(await worker(["scan"], REFUSE, true).ended, 0, "a worker that refuses");
  same(await statusOf(tokens.user, id), "failed", "given up");

  const problem = page.locator('[data-problem="letters"]');
  await problem.filter({ hasText: "the scanner has no signatures" }).waitFor();
  await page.locator(".notice", { hasText: "contract.txt" }).waitFor();
  await window.go("#/recovery");
  await page.locator('section[aria-labelledby="h-letters"] tbody tr', { hasText: "the scanner has no signatures" }).waitFor();
  const [letter] = (await api(tokens.user, "GET", "/api/v2/dlq")).body.jobs;
  const { said, outcome } = await window.act(`redrive-${letter.jobId}`);
  check(said.includes("will wait again for scan"), said);
  check(outcome.includes("is queued again"), outcome);
  same(await statusOf(tokens.user, id), "queued", "by the API");
  await page.locator(".nothing", { hasText: "no stage has given up" }).waitFor();
  same(await worker(["scan"], "", true).ended, 0, "a worker that works");
  await ends(tokens.user, id, "ready");
  await window.go("#/");
  await page.locator(".verdict.ok").waitFor();

  // Discarded: the letter goes, the file stays failed; and two are redriven at once.
  const more = [await put(tokens.user, "one.txt", "1"), await put(tokens.user, "two.txt", "2"), await put(tokens.user, "three.txt", "3")];
  same(await worker(["scan"], REFUSE, true).ended, 0, "refused again");
  await window.go("#/recovery");
  await page.locator("#h-letters .count", { hasText: "3" }).waitFor();
  const letters = (await api(tokens.user, "GET", "/api/v2/dlq")).body.jobs;
  const of = letters.find((job) => job.fileId === more[0]);
  await page.locator(`[data-action="discard-${of.jobId}"]`).waitFor();
  check((await window.act(`discard-${of.jobId}`)).outcome.includes("stays failed"), "told");
  same(await statusOf(tokens.user, more[0]), "failed", "it stays");
  await page.locator(`[data-action="discard-${of.jobId}"]`).waitFor({ state: "detached" });
  await page.locator("#h-letters .count", { hasText: "2" }).waitFor();
  check((await window.act("redrive-all")).outcome.includes("2 files queued again"), "told");
  same(await worker(["scan"], "", true).ended, 0, "a worker that works");
  for (const file of more.slice(1)) await ends(tokens.user, file, "ready");
});
