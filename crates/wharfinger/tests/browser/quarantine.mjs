// An infected file is quarantined: its page says when it will be deleted. An operator releases it with a reason.

import { check, expect, put, same, scenario, statusOf, tokens, waitForStatus } from "./scenario.mjs";

// Split, so that scanners do not detect this source file.
const EICAR = ["X5O!P%@AP[4\\PZX54(P^)7CC)7}$", "EICAR-STANDARD-ANTIVIRUS", "-TEST-FILE!$H+H*"].join("");
const REASON = "a test file of scanners";

await scenario(async ({ open }) => {
  const id = await put(tokens.user, "invoice.txt", EICAR);
  await waitForStatus(tokens.user, id, "quarantined");
  const release = `[data-action="release-${id}"]`;

  const owner = await open();
  await owner.signIn(tokens.user);
  await owner.go(`#/files/${id}`);
  await owner.page.locator(".file-error", { hasText: "infected" }).waitFor();
  await owner.page.locator("#deletion-date", { hasText: "in 90 days, after a warning" }).waitFor();
  same(await owner.page.locator(release).count(), 0, "a user cannot release");

  const window = await open();
  const { page } = window;
  await window.signIn(tokens.operator);
  await window.go(`#/files/${id}`);
  await page.locator(release).click();
  const dialog = page.locator("dialog[open]");
  await dialog.locator("#dialog-text", { hasText: "infected" }).waitFor();
  await page.fill("#dialog-field", "  ");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator("#dialog-error", { hasText: "Enter a reason" }).waitFor();
  await window.checkAccessibility("the dialog of a release");
  same(await statusOf(tokens.user, id), "quarantined", "nothing was sent");
  await page.fill("#dialog-field", REASON);
  await dialog.locator("button[type=submit]").click();
  await page.locator(".toast", { hasText: "is released" }).waitFor();
  await page.locator(".timeline", { hasText: `released: ${REASON}` }).waitFor();
  await waitForStatus(tokens.user, id, "ready");
  await page.locator("#status", { hasText: "ready" }).waitFor();
  same(await page.locator(release).count(), 0, "a ready file cannot be released");
  same(await page.locator("#deletion-date").count(), 0, "a ready file is not deleted");
  await owner.page.locator("#status", { hasText: "ready" }).waitFor();
  const { events } = await expect(tokens.user, "GET", `/api/v2/files/${id}/history`);
  check(events.some((event) => event.actor === "operator:olga" && event.reason.includes(REASON)), JSON.stringify(events));
});
