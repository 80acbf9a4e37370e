// The bytes go to a store of another origin, in parts where there are many: the policy lets them, and after a reload
// only the parts that were not there yet are sent.

import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { check, ends, expect, fileOf, findFile, same, scenario, throttle, tokens, until } from "./stage.mjs";

const MIB = 1 << 20;
const hash = async (path) => {
  const digest = createHash("sha256");
  for await (const piece of createReadStream(path)) digest.update(piece);
  return digest.digest("hex");
};
const partsSent = (window, origin) => window.requests
  .filter((request) => request.method() === "PUT" && new URL(request.url()).origin === origin)
  .map((request) => Number(new URL(request.url()).searchParams.get("partNumber")));

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user, "#/upload");
  const origin = process.env.STORE;
  check(!page.url().startsWith(origin), "the store is elsewhere");

  // Whole.
  await window.drop("#drop", [fileOf("small.txt", "Straight to the store.")]);
  await page.locator('.upload[data-name="small.txt"] .badge.ok').waitFor();
  same(partsSent(window, origin), [0], "one request, and no part");

  // In parts, with a reload in between.
  const path = fileOf("large.bin", randomBytes(5 * 16 * MIB - 4711));
  await throttle(page, 4 * MIB);
  const there = new Set();
  page.on("response", (response) => {
    const url = new URL(response.url());
    if (response.request().method() === "PUT" && url.origin === origin && response.ok()) there.add(Number(url.searchParams.get("partNumber")));
  });
  window.requests.length = 0;
  await window.drop("#drop", [path]);
  await until(() => there.size >= 2, "some parts are there");
  const { fileId } = await findFile(tokens.user, "large.bin");
  const before = [...there];
  window.requests.length = 0;
  await page.reload();
  await throttle(page, 64 * MIB);
  await page.locator('.upload[data-name="large.bin"] .badge').waitFor();
  await ends(tokens.user, fileId, "ready");
  const again = partsSent(window, origin);
  check(again.length && !again.some((part) => before.includes(part)), `${before} were there, and ${again} were sent after the reload`);
  same(window.requests.filter((request) => request.url().endsWith("/files/init")).length, 0, "it is not announced again");

  await window.go(`#/files/${fileId}`);
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  same(await hash(await (await downloading).path()), await hash(path), "the very bytes, from there and back");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).reserved, 0, "nothing is left reserved");
});
