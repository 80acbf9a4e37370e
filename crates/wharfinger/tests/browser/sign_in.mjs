// The way in and out: by the form, by the address, with wrong tokens, and with one that ends.

import { base, check, mint, same, scenario, tokens } from "./stage.mjs";

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await page.goto(base);
  await window.isOpenToAll("the sign-in page");
  const complaint = page.locator("#sign-in-wrong");

  await page.fill("#token", "not a token");
  await page.keyboard.press("Enter");
  await complaint.filter({ hasText: "three parts" }).waitFor();

  // Made by somebody else: it reads well, and the server knows better.
  const [head, claims] = tokens.operator.split(".");
  window.allow(/^401 /, /console: Failed to load resource.*401/);
  await page.fill("#token", `${head}.${claims}.AAAA`);
  await page.keyboard.press("Enter");
  await complaint.filter({ hasText: "does not accept your token" }).waitFor();

  await page.fill("#token", `  ${tokens.operator}\n`);
  await page.keyboard.press("Enter");
  await page.locator("#verdict").waitFor();
  same(await page.locator("#who strong").innerText(), "olga", "who it is");
  check((await page.locator("#who").innerText()).includes("harbour · operator"), "whose and what");
  check((await page.locator("header .ends").innerText()).includes("in 12 h"), "when the token ends");
  check(!page.url().includes("token"), "no token in the address");

  await page.reload();
  await page.locator("#verdict").waitFor();
  await page.click("#sign-out");
  await page.locator("#token").waitFor();
  same(await page.evaluate(() => [sessionStorage.length, document.cookie, Object.keys(localStorage)]), [0, "", []], "what is left behind");
  await page.reload();
  await page.locator("#token").waitFor();

  // An address with a token signs nobody in by itself.
  await page.goto(`${base}/#token=${tokens.user}`);
  await page.locator("#dialog-says", { hasText: "files that you upload will belong to ada" }).waitFor();
  check(!page.url().includes("token"), "it is out of the address at once");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  await page.locator("#token").waitFor();
  same(await page.evaluate(() => sessionStorage.length), 0, "nothing is kept of it");
  await page.goto(base);
  await window.signIn(tokens.user);
  same(new URL(page.url()).hash, "#/", "the token is out of the address at once");
  same(await page.locator("#who strong").innerText(), "ada", "the other one");
  // An address with another token, opened in the same tab: anybody can make one, so it is asked. No is no.
  const arrive = (token) => page.evaluate((given) => (location.hash = `#token=${given}`), token);
  await arrive(tokens.operator);
  await page.locator("#dialog-says", { hasText: "You are ada (acme · user)" }).waitFor();
  check(!page.url().includes("token"), "nor is that token left in the address");
  await page.keyboard.press("Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  same(await page.locator("#who strong").innerText(), "ada", "still the same");
  await arrive(tokens.operator);
  await page.locator("dialog button[type=submit]", { hasText: "Sign in as olga" }).click();
  await page.locator("#who strong", { hasText: "olga" }).waitFor();

  // Addresses that cannot be read: the page stands, and says so.
  await arrive("%E0%A4%A");
  await page.locator(".toast.bad", { hasText: "The token in the address is not taken" }).waitFor();
  same(await page.locator("#who strong").innerText(), "olga", "and nobody else");
  window.allow(/^4\d\d GET .*\/api\/v2\/files\//, /console: Failed to load resource.*\/api\/v2\/files\//);
  await page.evaluate(() => (location.hash = "#/files/%E0%A4%A"));
  await page.locator("main h1", { hasText: "File" }).waitFor();
  await page.reload();
  await page.locator("main h1", { hasText: "File" }).waitFor();

  await page.evaluate(() => (location.hash = "#/constructor"));
  await page.locator("main h1", { hasText: "Overview" }).waitFor({ state: "attached" });

  // A token that ends while the page is open.
  const brief = mint("acme", "brief", "user", "12s");
  await arrive(brief);
  await page.locator("dialog button[type=submit]").click();
  await page.locator("#who strong", { hasText: "brief" }).waitFor();
  await complaint.filter({ hasText: "Your token is over" }).waitFor();
  const refusal = page.waitForResponse((answer) => answer.status() === 401);
  await page.fill("#token", brief);
  await page.keyboard.press("Enter");
  await refusal;
  await complaint.filter({ hasText: "Your token is over" }).waitFor();
  await page.fill("#token", "nor this");
  await page.keyboard.press("Enter");
  await complaint.filter({ hasText: "three parts" }).waitFor();

  // The clock of this device is two hours ahead: the server's counts.
  await page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 7_200_000;
  });
  await page.reload();
  await page.fill("#token", mint("acme", "early", "user", "1h"));
  await page.keyboard.press("Enter");
  await page.locator("#who strong", { hasText: "early" }).waitFor();
  await page.reload();
  await page.locator("#who strong", { hasText: "early" }).waitFor();
});
