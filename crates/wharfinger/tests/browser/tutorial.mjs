// The web app of the tutorial: sign in, upload a picture and see it, upload something else under its type, delete.

import { execFileSync } from "node:child_process";
import { check, fileOf, same, scenario, until } from "./scenario.mjs";

const { APP, TABLE } = process.env;

/** The rows of the app's own table, as its SQLite file has them. */
function rows() {
  const code = "import json, sqlite3, sys; print(json.dumps(sqlite3.connect(sys.argv[1]).execute('SELECT owner, name, state FROM pictures').fetchall()))";
  return JSON.parse(execFileSync("python3", ["-c", code, TABLE], { encoding: "utf8" }));
}

/** A real picture, drawn by the browser. */
async function picture(page) {
  const data = await page.evaluate(() => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 320, height: 200 });
    const paint = canvas.getContext("2d");
    paint.fillStyle = "teal";
    paint.fillRect(20, 20, 280, 160);
    return canvas.toDataURL("image/png");
  });
  return Buffer.from(data.split(",")[1], "base64");
}

async function signIn(page, user, password) {
  await page.goto(APP);
  await page.fill("[name=user]", user);
  await page.fill("[name=password]", password);
  await page.click("#sign-in button");
}

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  window.allow(/401 POST .*\/sign-in/, /415 POST .*\/confirm/, /console: Failed to load resource: .* (401|415) /);
  await signIn(page, "ann", "wrong");
  await page.locator("#error", { hasText: "wrong name or password" }).waitFor();
  await signIn(page, "ann", "ann's password");
  await page.locator("#signed-in").waitFor();

  const bytes = await picture(page);
  await page.setInputFiles("#file", fileOf("harbour.png", bytes));
  const image = page.locator("#pictures img");
  await image.waitFor();
  await until(() => image.evaluate((it) => it.complete && it.naturalWidth), "the picture is loaded");
  same(await image.evaluate((it) => [it.naturalWidth, it.naturalHeight]), [320, 200], "the size of the picture");
  same(rows(), [["ann", "harbour.png", "ready"]], "the app's table");
  await window.checkAccessibility("the app");
  await window.screenshot("tutorial");

  // HTML with the name and the type of a picture is refused, and never becomes a row.
  await page.setInputFiles("#file", fileOf("page.png", "<!doctype html><script>alert(1)</script>"));
  await page.locator("#error", { hasText: /\S/ }).waitFor();
  check((await page.locator("#error").innerText()).includes("image/png"), `the error names the type: ${await page.locator("#error").innerText()}`);
  same(rows().length, 1, "rows after the refused file");

  // Another user does not see the picture.
  const other = await open();
  await signIn(other.page, "ben", "ben's password");
  await other.page.locator("#signed-in").waitFor();
  same(await other.page.locator("#pictures li").count(), 0, "pictures of another user");

  const link = await image.getAttribute("src");
  await page.click("text=Delete harbour.png");
  await until(async () => (await page.locator("#pictures li").count()) === 0, "the picture is deleted");
  same(rows(), [], "the app's table after the delete");
  await until(async () => (await fetch(link)).status >= 400, "the link of a deleted picture ends");
});
