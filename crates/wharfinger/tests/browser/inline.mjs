// Pages of another origin show files by their links: pictures work, and no uploaded file ever runs a script.

import { createServer } from "node:http";
import { once } from "node:events";
import { deflateSync } from "node:zlib";
import { api, base, check, expect, put, same, scenario, tokens, until } from "./scenario.mjs";

const ATTACK = '<!doctype html><title>harmless</title><script>document.title = "HACKED"; top.postMessage("HACKED", "*"); parent.postMessage("HACKED", "*");</script><img src=x onerror="top.postMessage(\'HACKED\', \'*\')">';
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="top.postMessage('HACKED', '*')"><script>top.postMessage("HACKED", "*")</script></svg>`;

/** A grey picture of this size. */
function png(width, height) {
  const table = Array.from({ length: 256 }, (_, n) => {
    let c = n;
    for (let k = 0; k < 8; k += 1) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    return c >>> 0;
  });
  const crc = (bytes) => (bytes.reduce((c, byte) => table[(c ^ byte) & 255] ^ (c >>> 8), 0xffffffff) ^ 0xffffffff) >>> 0;
  const chunk = (type, data) => {
    const body = Buffer.concat([Buffer.from(type), data]);
    const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    length.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc(body));
    return Buffer.concat([length, body, sum]);
  };
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header[8] = 8;
  const rows = Buffer.alloc((width + 1) * height, 127);
  for (let row = 0; row < height; row += 1) rows[row * (width + 1)] = 0;
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", header), chunk("IDAT", deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

/** A second of silence. */
function wav() {
  const bytes = Buffer.alloc(44 + 8_000, 128);
  bytes.write("RIFF", 0);
  bytes.writeUInt32LE(36 + 8_000, 4);
  bytes.write("WAVEfmt ", 8);
  [16, 0x10001, 8_000, 8_000, 0x80001].forEach((value, n) => bytes.writeUInt32LE(value, 16 + 4 * n));
  bytes.write("data", 36);
  bytes.writeUInt32LE(8_000, 40);
  return bytes;
}

/** A page with a script that tries to leave the viewer. */
const pdf = () => `%PDF-1.7
1 0 obj\n<< /Type /Catalog /Pages 2 0 R /OpenAction << /S /JavaScript /JS (document.title = "HACKED"; opener.postMessage("HACKED", "*");) >> >>\nendobj
2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj
3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] >>\nendobj
trailer\n<< /Root 1 0 R >>\n%%EOF\n`;

const link = (id, options = "") => expect(tokens.user, "GET", `/api/v2/files/${id}/download?redirect=false${options}`).then((answer) => answer.url);

await scenario(async ({ open }) => {
  const picture = await put(tokens.user, "picture.png", png(7, 5), "image/png");
  const fake = await put(tokens.user, "fake.png", ATTACK, "image/png");
  const text = await put(tokens.user, "text.txt", ATTACK, "text/plain");
  const page = await put(tokens.user, "page.html", ATTACK, "text/html");
  const drawing = await put(tokens.user, "drawing.svg", SVG, "image/svg+xml");
  for (const id of [page, drawing]) {
    const refused = await api(tokens.user, "GET", `/api/v2/files/${id}/download?disposition=inline`);
    same([refused.status, refused.body.code], [415, "not_inline"], "inline of a type that can run");
  }
  const sound = await put(tokens.user, "silence.wav", wav(), "audio/wav");
  const document = await put(tokens.user, "page.pdf", pdf(), "application/pdf");
  const inline = "&disposition=inline&expiresIn=600";
  const urls = {
    picture: await link(picture, inline),
    fake: await link(fake, inline),
    text: await link(text, inline),
    sound: await link(sound, inline),
    document: await link(document, inline),
    page: await link(page),
    drawing: await link(drawing),
  };

  // A page of an application with another origin.
  const images = ["picture", "drawing", "fake"].map((name) => `<img id="${name}" src="${urls[name].replaceAll("&", "&amp;")}">`);
  const frames = ["fake", "text", "page", "drawing"].map((name) => `<iframe src="${urls[name].replaceAll("&", "&amp;")}"></iframe>`);
  const listen = "<script>window.messages = []; addEventListener('message', (event) => messages.push(event.data));</script>";
  const server = createServer((_, response) => {
    response.setHeader("content-type", "text/html");
    response.end(`<!doctype html>${listen}${images.join("")}${frames.join("")}`);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const own = `http://localhost:${server.address().port}/`;
  try {
    const window = await open();
    // The frames: refused, or a download. The last image is no image.
    window.allow(/./);
    await window.page.goto(own, { waitUntil: "load" });
    same(new URL(urls.picture).origin === new URL(own).origin, false, "the same origin");
    const size = await window.page.locator("#picture").evaluate((image) => [image.naturalWidth, image.naturalHeight]);
    same(size, [7, 5], "the size of the picture");
    same(await window.page.locator("#fake").evaluate((image) => image.naturalWidth), 0, "the page that claims to be a picture");
    same(await window.page.evaluate(() => globalThis.messages), [], "messages of scripts");

    // Each opened by itself. Attachments become downloads and leave the page.
    for (const name of ["fake", "text", "page", "drawing"]) {
      const opened = await open();
      opened.allow(/./);
      const { page: tab } = opened;
      const dialogs = [];
      tab.on("dialog", (dialog) => (dialogs.push(dialog.message()), dialog.dismiss()));
      const downloading = tab.waitForEvent("download", { timeout: 2_000 }).catch(() => null);
      await tab.goto(urls[name]).catch((error) => check(/Download is starting|ERR_ABORTED/.test(String(error)), String(error)));
      const isSaved = ["page", "drawing"].includes(name);
      if (isSaved) check(await downloading, `${name} is not saved`);
      check((await tab.title()) !== "HACKED" && !dialogs.length, `${name} ran`);
      if (name === "text") same((await tab.locator("body").innerText()).startsWith("<!doctype html>"), true, "the text as text");
    }
    // Film and sound play when they are opened by themselves.
    const { page: player } = await open();
    await player.goto(urls.sound);
    await until(() => player.locator("video").evaluate((video) => video.readyState >= 1), "the sound is loaded");
    // A PDF is shown by the browser's viewer, which keeps its scripts apart.
    const viewer = await open();
    viewer.allow(/./);
    await viewer.page.goto(urls.document);
    await until(() => viewer.page.frames().some((frame) => frame.url().startsWith("chrome-extension://")), "the PDF is shown");
    check((await viewer.page.title()) !== "HACKED", "the script of the PDF ran in the page");
  } finally {
    server.close();
  }

  // The local store has the page's origin, so its content security policy allows these URLs. They are no scripts.
  if (!process.env.STORE) {
    const script = await link(await put(tokens.user, "a.js", 'document.title = "HACKED";', "text/javascript"));
    const attacked = await open();
    attacked.allow(/./);
    await attacked.page.goto(base);
    const outcome = await attacked.page.evaluate((src) => new Promise((resolve) => {
      const element = Object.assign(globalThis.document.createElement("script"), { src });
      element.addEventListener("load", () => resolve("loaded"));
      element.addEventListener("error", () => resolve("refused"));
      globalThis.document.head.append(element);
    }), script);
    same(outcome, "refused", "an uploaded script on the page's origin");
  }

  // The picture is shown on the page of its file.
  const window = await open();
  await window.signIn(tokens.user, `#/files/${picture}`);
  const preview = window.page.locator("section[data-key=preview] img");
  await preview.waitFor();
  await until(() => preview.evaluate((image) => image.naturalWidth === 7), "the preview is loaded");
});
