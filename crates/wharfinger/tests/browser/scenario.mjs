// What every scenario stands on: a real Chromium whose every complaint is a failure, the API beside the page, and
// waiting for conditions instead of for time.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { BASE, PLAYWRIGHT, AXE, CHROMIUM, SCREENSHOTS, PLACE, PROGRAM, WORKER } = process.env;
const { chromium } = await import(pathToFileURL(join(PLAYWRIGHT, "index.mjs")));
const axeSource = readFileSync(join(AXE, "axe.min.js"), "utf8");
const PATIENCE_MS = 120_000;

export const base = BASE;
export const place = PLACE;
export const tokens = JSON.parse(process.env.TOKENS);

export function check(holds, what) {
  if (!holds) throw new Error(what);
}

export function same(found, wanted, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  check(a === b, `${what}: ${a} and not ${b}`);
}

/** Waits until `look` answers something, and answers that. */
export async function until(look, what) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    check(Date.now() < end, `waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** A call of the API, as a program makes it. */
export async function api(token, method, path, body) {
  const response = await fetch(`${BASE}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}

export async function expect(token, method, path, body) {
  const answer = await api(token, method, path, body);
  check(answer.status < 300, `${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
  return answer.body;
}

/** Puts a file through, as far as confirmed, without the page. */
export async function put(token, fileName, bytes, contentType = "text/plain") {
  const content = Buffer.from(bytes);
  const grant = await expect(token, "POST", "/api/v2/files/init", { fileName, size: content.length, contentType });
  const sent = await fetch(grant.uploadUrl, { method: "PUT", headers: grant.headers, body: content });
  check(sent.ok, `PUT of ${fileName}: ${sent.status}`);
  await expect(token, "POST", `/api/v2/files/${grant.fileId}/confirm`);
  return grant.fileId;
}

export const statusOf = async (token, id) => (await api(token, "GET", `/api/v2/files/${id}`)).body.status;
export const ends = (token, id, status) => until(async () => (await statusOf(token, id)) === status, `${id} is ${status}`);

export async function findFile(token, name) {
  const { files } = await expect(token, "GET", "/api/v2/files?limit=1000");
  return files.find((file) => file.fileName === name);
}

/** A token for somebody else, by the program itself. */
export function mint(tenant, user, role, life) {
  const command = ["token", "--tenant", tenant, "--user", user, "--role", role, "--expires", life];
  return execFileSync(PROGRAM, command, { cwd: PLACE, env: {}, encoding: "utf8" }).trim();
}

/** The example worker of the docs as a process of its own; `patch` is Python that changes it first. */
export function worker(stages, patch = "", isUntilIdle = false) {
  const code = `import sys\nsys.path.insert(0, ${JSON.stringify(WORKER.replace(/\/[^/]*$/, ""))})\nimport time, worker\n${patch}\nworker.main()`;
  const child = spawn("python3", ["-c", code, ...stages, ...(isUntilIdle ? ["--until-idle"] : [])], {
    env: { ...process.env, WHARFINGER_SERVER: BASE, WHARFINGER_TOKEN: tokens.worker, LEASE_MS: process.env.JOB_LEASE_MS ?? "60000" },
    stdio: ["ignore", "inherit", "inherit"],
  });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(signal ?? code)));
  return { child, ended };
}

/** An open page, and everything that went wrong on it. */
export class Window {
  constructor(page) {
    this.page = page;
    this.wrong = [];
    this.requests = [];
    this.allowed = [];
    page.on("console", (message) => message.type() === "error" && this.complain(`console: ${message.text()} (${message.location().url})`));
    page.on("pageerror", (error) => this.complain(`page error: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => (this.complain(`a ${dialog.type()}: ${dialog.message()}`), dialog.dismiss()));
    page.on("request", (request) => this.requests.push(request));
    page.on("requestfailed", (request) => {
      // The stream is cut when its page goes away or looks elsewhere, and a download when it is handed over.
      const isCut = request.failure()?.errorText === "net::ERR_ABORTED";
      if (!isCut) this.complain(`failed: ${request.method()} ${request.url()}: ${request.failure()?.errorText}`);
    });
    page.on("response", (response) => response.status() >= 400 && this.complain(`${response.status()} ${response.request().method()} ${response.url()}`));
  }

  complain(what) {
    this.wrong.push(what);
  }

  /** Of what this scenario does on purpose. */
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  /** Fails with everything that was not meant to happen. */
  isSound() {
    const left = this.wrong.filter((what) => !this.allowed.some((pattern) => pattern.test(what)));
    check(!left.length, `the page complained:\n${left.join("\n")}`);
  }

  /** Opens an address with a token, and says yes where it is asked whether that is meant. */
  async arrive(address) {
    const { page } = this;
    await page.goto(address);
    const yes = page.locator("dialog[open] button[type=submit]");
    await page.locator("#line").or(yes).first().waitFor();
    if (await yes.count()) await yes.click();
  }

  async signIn(token, hash = "#/") {
    await this.arrive(`${BASE}/#token=${token}`);
    await this.page.locator("#line.ok").waitFor();
    if (hash !== "#/") await this.go(hash);
    else await this.page.locator("#verdict").waitFor();
  }

  async go(hash) {
    await this.page.evaluate((to) => (location.hash = to), hash);
    await this.page.locator("main h1").first().waitFor({ state: "attached" });
  }

  /** The action's button, its dialog, yes; answers what was said at the end. */
  async act(action, within = "main") {
    const { page } = this;
    await page.locator(`${within} [data-action="${action}"]`).first().click();
    const dialog = page.locator("dialog[open]");
    await dialog.waitFor();
    const said = await dialog.locator("#dialog-says").innerText();
    check(said.length > 20, `the dialog says what will happen: ${said}`);
    const numbers = () => page.locator(".toast").evaluateAll((toasts) => toasts.map((toast) => Number(toast.dataset.number)));
    const before = Math.max(0, ...(await numbers()));
    await dialog.locator("button[type=submit]").click();
    const number = await until(async () => (await numbers()).find((fresh) => fresh > before), "the outcome is told");
    const toast = page.locator(`.toast[data-number="${number}"]`);
    return { said, outcome: await toast.innerText(), isBad: (await toast.getAttribute("class")).includes("bad") };
  }

  /** Drags files of the disk onto an element, as the browser itself does it. */
  async drop(selector, paths) {
    const box = await this.page.locator(selector).boundingBox();
    const [x, y] = [box.x + box.width / 2, box.y + 20];
    const line = await this.page.context().newCDPSession(this.page);
    const data = { items: [], files: paths, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver"]) await line.send("Input.dispatchDragEvent", { type, x, y, data });
    await this.page.locator(`${selector}.over`).waitFor();
    await line.send("Input.dispatchDragEvent", { type: "drop", x, y, data });
    await line.detach();
  }

  /** No rule of WCAG 2.2 A or AA, nor of good practice, is broken in what is shown now. */
  async isOpenToAll(where) {
    await this.page.evaluate(axeSource);
    const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const told = violations.map((rule) => `${rule.id} (${rule.impact}): ${rule.help}\n${rule.nodes.slice(0, 3).map((node) => `    ${node.html}\n    ${node.failureSummary}`).join("\n")}`);
    check(!violations.length, `${where} keeps people out:\n${told.join("\n")}`);
  }

  async shoot(name, fullPage = false) {
    mkdirSync(SCREENSHOTS, { recursive: true });
    await this.page.evaluate(() => document.activeElement?.blur());
    await this.page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage, animations: "disabled" });
  }
}

/** A file on disk with this content, to be dragged or chosen. */
export function fileOf(name, content) {
  const path = join(PLACE, name);
  writeFileSync(path, content);
  return path;
}

/** Slows down what this page sends, so that there is something to see on the way. */
export async function throttle(page, bytesPerSecond) {
  const line = await page.context().newCDPSession(page);
  await line.send("Network.enable");
  const set = (uploadThroughput) => line.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput });
  await set(bytesPerSecond);
  return () => set(-1);
}

/** Runs a scenario in a browser of its own. `play` gets a way to open windows. */
export async function scenario(play) {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
  const contexts = [];
  const windows = [];
  async function context(options = {}) {
    const made = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", locale: "en-GB", ...options });
    made.setDefaultTimeout(PATIENCE_MS);
    // Whatever the policy stops is told in the console too, but not by every browser.
    await made.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`)));
    contexts.push(made);
    return made;
  }
  async function open(options = {}, within = null) {
    const window = new Window(await (within ?? (await context(options))).newPage());
    windows.push(window);
    return window;
  }
  try {
    await play({ open, context });
    for (const window of windows) window.isSound();
  } catch (error) {
    for (const [at, { page, wrong }] of windows.entries()) {
      if (page.isClosed()) continue;
      mkdirSync(SCREENSHOTS, { recursive: true });
      await page.screenshot({ path: join(SCREENSHOTS, `failure-${process.env.SCENARIO}-${at}.png`), fullPage: true }).catch(() => {});
      console.error(`window ${at} at ${page.url()}:\n${wrong.join("\n")}`);
    }
    console.error(error);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}
