// Sign-in and sign-out: with the form, with a link, with wrong tokens, and with a token that expires.

import { base, check, createKey, mint, same, scenario, tokens } from "./scenario.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await page.goto(base);
  await window.checkAccessibility("the sign-in page");
  const error = page.locator("#sign-in-error");

  await page.fill("#token", "not a token");
  await page.keyboard.press("Enter");
  await error.filter({ hasText: "three parts" }).waitFor();

  // A forged token: the page can read it, but the server rejects it.
  const [head, claims] = tokens.operator.split(".");
  window.allow(/^401 /, /console: Failed to load resource.*401/);
  await page.fill("#token", `${head}.${claims}.AAAA`);
  await page.keyboard.press("Enter");
  await error.filter({ hasText: "rejected your token" }).waitFor();

  await page.fill("#token", `  ${tokens.operator}\n`);
  await page.keyboard.press("Enter");
  await page.locator("#health").waitFor();
  same(await page.locator("#user strong").innerText(), "olga", "the user");
  check((await page.locator("#user").innerText()).includes("ops · operator"), "the tenant and the role");
  check((await page.locator("header .expiry").innerText()).includes("in 12 h"), "when the token expires");
  check(!page.url().includes("token"), "no token in the URL");

  await page.reload();
  await page.locator("#health").waitFor();
  await page.click("#sign-out");
  await page.locator("#token").waitFor();
  same(await page.evaluate(() => [sessionStorage.length, document.cookie, Object.keys(localStorage)]), [0, "", []], "what is stored after the sign-out");
  await page.reload();
  await page.locator("#token").waitFor();

  // A service key signs in too, but not one of a narrow role.
  window.allow(/^403 .*\/api\/v2\/session/, /console: Failed to load resource.*403/);
  await page.fill("#token", createKey("--role", "ingest", "--tenant", "acme"));
  await page.keyboard.press("Enter");
  await error.filter({ hasText: "can only send events" }).waitFor();
  await page.fill("#token", createKey("--role", "operator", "--name", "the page"));
  await page.keyboard.press("Enter");
  await page.locator("#health").waitFor();
  check((await page.locator("#user").innerText()).includes("default · operator"), "the tenant and the role of the key");
  check((await page.locator("header .expiry").innerText()).includes("without expiry"), "the key does not expire");
  await page.reload();
  await page.locator("#health").waitFor();
  await window.go("#/maintenance");
  const row = page.locator('[data-key="keys"] tbody tr', { hasText: "the page" });
  await row.filter({ hasText: "valid" }).filter({ hasText: "never" }).waitFor();
  same(await page.locator('[data-key="keys"] tbody tr').count(), 2, "keys in the list");
  await window.checkAccessibility("the list of keys");
  await window.go("#/");
  await page.click("#sign-out");
  await page.locator("#token").waitFor();

  // A link with a token asks first.
  await page.goto(`${base}/#token=${tokens.user}`);
  await page.locator("#dialog-text", { hasText: "Files that you upload will belong to ada" }).waitFor();
  check(!page.url().includes("token"), "the token is removed from the URL at once");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  await page.locator("#token").waitFor();
  same(await page.evaluate(() => sessionStorage.length), 0, "nothing is stored");
  await page.goto(base);
  await window.signIn(tokens.user);
  same(new URL(page.url()).hash, "#/", "the token is removed from the URL");
  same(await page.locator("#user strong").innerText(), "ada", "another user");
  // A link with another token in the same tab: the page asks, and Escape keeps the user.
  const openLink = (token) => page.evaluate((given) => (location.hash = `#token=${given}`), token);
  await openLink(tokens.operator);
  await page.locator("#dialog-text", { hasText: "You are signed in as ada (acme · user)" }).waitFor();
  check(!page.url().includes("token"), "the token is removed from the URL");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same(await page.locator("#user strong").innerText(), "ada", "the same user");
  await openLink(tokens.operator);
  await page.locator("dialog button[type=submit]", { hasText: "Sign in as olga" }).click();
  await page.locator("#user strong", { hasText: "olga" }).waitFor();

  // URLs that cannot be decoded: the page still works and shows an error.
  await openLink("%E0%A4%A");
  await page.locator(".toast.bad", { hasText: "Cannot sign in with the token in the link" }).waitFor();
  same(await page.locator("#user strong").innerText(), "olga", "the same user");
  window.allow(/^4\d\d GET .*\/api\/v2\/files\//, /console: Failed to load resource.*\/api\/v2\/files\//);
  await page.evaluate(() => (location.hash = "#/files/%E0%A4%A"));
  await page.locator("main h1", { hasText: "File" }).waitFor();
  await page.reload();
  await page.locator("main h1", { hasText: "File" }).waitFor();

  await page.evaluate(() => (location.hash = "#/constructor"));
  await page.locator("main h1", { hasText: "Overview" }).waitFor({ state: "attached" });

  // A token that expires while the page is open.
  const brief = mint("acme", "brief", "user", "12s");
  await openLink(brief);
  await page.locator("dialog button[type=submit]").click();
  await page.locator("#user strong", { hasText: "brief" }).waitFor();
  await error.filter({ hasText: "Your token has expired" }).waitFor();
  const refusal = page.waitForResponse((answer) => answer.status() === 401);
  await page.fill("#token", brief);
  await page.keyboard.press("Enter");
  await refusal;
  await error.filter({ hasText: "Your token has expired" }).waitFor();
  await page.fill("#token", "nor this");
  await page.keyboard.press("Enter");
  await error.filter({ hasText: "three parts" }).waitFor();

  // The clock of this device is two hours ahead: the server's time counts.
  await page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 7_200_000;
  });
  await page.reload();
  await page.fill("#token", mint("acme", "early", "user", "1h"));
  await page.keyboard.press("Enter");
  await page.locator("#user strong", { hasText: "early" }).waitFor();
  await page.reload();
  await page.locator("#user strong", { hasText: "early" }).waitFor();
});
