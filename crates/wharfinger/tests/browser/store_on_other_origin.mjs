// The bytes are sent to a store with another origin, large files in parts. The content security policy allows it, and after
// a reload only the missing parts are sent.

import { createHash, randomBytes } from "node:crypto";
import { createReadStream } from "node:fs";
import { check, waitForStatus, expect, fileOf, findFile, same, scenario, throttle, tokens, until } from "./scenario.mjs";

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
  check(!page.url().startsWith(origin), "the store has another origin");

  // In one request.
  await window.drop("#drop", [fileOf("small.txt", "Straight to the store.")]);
  await page.locator('.upload[data-name="small.txt"] .badge.ok').waitFor();
  same(partsSent(window, origin), [0], "one request without parts");

  // In parts, with a reload during the upload.
  const path = fileOf("large.bin", randomBytes(5 * 16 * MIB - 4711));
  await throttle(page, 4 * MIB);
  const arrived = new Set();
  page.on("response", (response) => {
    const url = new URL(response.url());
    if (response.request().method() === "PUT" && url.origin === origin && response.ok()) arrived.add(Number(url.searchParams.get("partNumber")));
  });
  window.requests.length = 0;
  await window.drop("#drop", [path]);
  await until(() => arrived.size >= 2, "some parts have arrived");
  const { fileId } = await findFile(tokens.user, "large.bin");
  const before = [...arrived];
  window.requests.length = 0;
  await page.reload();
  await throttle(page, 64 * MIB);
  await page.locator('.upload[data-name="large.bin"] .badge').waitFor();
  await waitForStatus(tokens.user, fileId, "ready");
  const again = partsSent(window, origin);
  check(again.length && !again.some((part) => before.includes(part)), `${before} had arrived, and ${again} were sent after the reload`);
  same(window.requests.filter((request) => request.url().endsWith("/files/init")).length, 0, "registrations after the reload");

  await window.go(`#/files/${fileId}`);
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  same(await hash(await (await downloading).path()), await hash(path), "the downloaded bytes");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).reserved, 0, "reserved bytes");
});
