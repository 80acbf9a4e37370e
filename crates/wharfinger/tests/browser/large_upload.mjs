// A large file goes to the local store in parts. After a reload only the missing parts are sent. A cancelled upload leaves
// no part on disk.

import { createHash, randomBytes } from "node:crypto";
import { createReadStream, readdirSync } from "node:fs";
import { join } from "node:path";
import { api, check, waitForStatus, expect, fileOf, findFile, place, same, scenario, throttle, tokens, until } from "./scenario.mjs";

const MIB = 1 << 20;
const hash = async (path) => {
  const digest = createHash("sha256");
  for await (const piece of createReadStream(path)) digest.update(piece);
  return digest.digest("hex");
};
const partOf = (request) => (request.method() === "PUT" ? Number(new URL(request.url()).searchParams.get("partNumber")) : 0);
const uploads = () => readdirSync(join(place, "wharfinger-data/blobs/.multipart"));

await scenario(async ({ open }) => {
  const window = await open();
  const { page } = window;
  await window.signIn(tokens.user, "#/upload");
  const arrived = new Set();
  page.on("response", (response) => {
    const part = partOf(response.request());
    if (part && response.ok()) arrived.add(part);
  });

  // Three parts, and the last one is small.
  const path = fileOf("large.bin", randomBytes(2 * 16 * MIB + 4711));
  await throttle(page, 2 * MIB);
  await window.drop("#drop", [path]);
  await until(() => arrived.size >= 1, "a part has arrived");
  const { fileId } = await findFile(tokens.user, "large.bin");
  same(uploads().length, 1, "uploads on disk");
  window.requests.length = 0;
  await page.reload();
  const before = [...arrived];
  await throttle(page, 64 * MIB);
  await page.locator('.upload[data-name="large.bin"] .badge').waitFor();
  await waitForStatus(tokens.user, fileId, "ready");
  const again = window.requests.map(partOf).filter(Boolean);
  check(again.length && !again.some((part) => before.includes(part)), `${before} had arrived, and ${again} were sent after the reload`);
  same(window.requests.filter((request) => request.url().endsWith("/files/init")).length, 0, "registrations after the reload");
  same(uploads(), [], "uploads on disk after the confirm");

  await window.go(`#/files/${fileId}`);
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download" }).click();
  same(await hash(await (await downloading).path()), await hash(path), "the downloaded bytes");

  // Cancelled while parts are sent.
  await window.go("#/upload");
  await throttle(page, 2 * MIB);
  await window.drop("#drop", [fileOf("never.bin", randomBytes(2 * 16 * MIB + 4711))]);
  const row = page.locator('.upload[data-name="never.bin"]');
  await until(() => uploads().length === 1, "the upload has started");
  const never = await findFile(tokens.user, "never.bin");
  await row.getByRole("button", { name: "Cancel" }).click();
  await page.locator("dialog button[type=submit]", { hasText: "Cancel upload" }).click();
  await row.filter({ hasText: "Cancelled" }).waitFor();
  await until(async () => (await api(tokens.user, "GET", `/api/v2/files/${never.fileId}`)).status === 404, "the file is deleted");
  await until(() => uploads().length === 0, "no part is left on disk");
  same((await expect(tokens.user, "GET", "/api/v2/quota")).reserved, 0, "reserved bytes");
});
