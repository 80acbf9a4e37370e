// What every scenario uses: a real Chromium in which each unexpected error fails the test, calls of the API, and waits for
// conditions instead of fixed times.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { BASE, PLAYWRIGHT, AXE, CHROMIUM, SCREENSHOTS, PLACE, PROGRAM, WORKER } = process.env;
const { chromium } = await import(pathToFileURL(join(PLAYWRIGHT, "index.mjs")));
const axeSource = readFileSync(join(AXE, "axe.min.js"), "utf8");
const TIMEOUT_MS = 120_000;

export const base = BASE;
export const place = PLACE;
export const tokens = JSON.parse(process.env.TOKENS);

export function check(isTrue, message) {
  if (!isTrue) throw new Error(message);
}

export function same(found, wanted, what) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  check(a === b, `${what}: ${a} instead of ${b}`);
}

/** Waits until `read` returns a true value, and returns that. */
export async function until(read, what) {
  const end = Date.now() + TIMEOUT_MS;
  for (;;) {
    const found = await read();
    if (found) return found;
    check(Date.now() < end, `timeout while waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Calls the API without the page. */
export async function api(token, method, path, body) {
  const response = await fetch(`${BASE}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}

/** Like `api`, but fails on an error and returns only the body. */
export async function expect(token, method, path, body) {
  const answer = await api(token, method, path, body);
  check(answer.status < 300, `${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
  return answer.body;
}

/** Uploads and confirms a file without the page. */
export async function put(token, fileName, bytes, contentType = "text/plain") {
  const content = Buffer.from(bytes);
  const grant = await expect(token, "POST", "/api/v2/files/init", { fileName, size: content.length, contentType });
  const sent = await fetch(grant.uploadUrl, { method: "PUT", headers: grant.headers, body: content });
  check(sent.ok, `PUT of ${fileName}: ${sent.status}`);
  await expect(token, "POST", `/api/v2/files/${grant.fileId}/confirm`);
  return grant.fileId;
}

export const statusOf = async (token, id) => (await api(token, "GET", `/api/v2/files/${id}`)).body.status;
export const waitForStatus = (token, id, status) => until(async () => (await statusOf(token, id)) === status, `${id} is ${status}`);

export async function findFile(token, name) {
  const { files } = await expect(token, "GET", "/api/v2/files?limit=1000");
  return files.find((file) => file.fileName === name);
}

/** A token for another user, created by the program's own command. */
export function mint(tenant, user, role, lifetime) {
  const command = ["token", "--tenant", tenant, "--user", user, "--role", role, "--expires", lifetime];
  return execFileSync(PROGRAM, command, { cwd: PLACE, env: {}, encoding: "utf8" }).trim();
}

/** A service key. */
export function createKey(...options) {
  return execFileSync(PROGRAM, ["key", "create", ...options], { cwd: PLACE, env: {}, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
}

/** Starts the example worker of the docs as a process. `patch` is Python code that changes it first. */
export function worker(stages, patch = "", isUntilIdle = false) {
  const code = `import sys\nsys.path.insert(0, ${JSON.stringify(WORKER.replace(/\/[^/]*$/, ""))})\nimport time, worker\n${patch}\nworker.main()`;
  const child = spawn("python3", ["-c", code, ...stages, ...(isUntilIdle ? ["--until-idle"] : [])], {
    env: { ...process.env, WHARFINGER_URL: BASE, WHARFINGER_TOKEN: tokens.worker, LEASE_MS: process.env.JOB_LEASE_MS ?? "60000" },
    stdio: ["ignore", "inherit", "inherit"],
  });
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(signal ?? code)));
  return { child, ended };
}

/** An open page with all errors and requests that it has caused. */
export class Window {
  constructor(page) {
    this.page = page;
    this.errors = [];
    this.requests = [];
    this.allowed = [];
    page.on("console", (message) => message.type() === "error" && this.addError(`console: ${message.text()} (${message.location().url})`));
    page.on("pageerror", (error) => this.addError(`page error: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => (this.addError(`a ${dialog.type()}: ${dialog.message()}`), dialog.dismiss()));
    page.on("request", (request) => this.requests.push(request));
    page.on("requestfailed", (request) => {
      // The page closes its stream when it leaves or selects another tenant, and Chromium ends a request that becomes a download.
      const isAborted = request.failure()?.errorText === "net::ERR_ABORTED";
      if (!isAborted) this.addError(`failed: ${request.method()} ${request.url()}: ${request.failure()?.errorText}`);
    });
    page.on("response", (response) => response.status() >= 400 && this.addError(`${response.status()} ${response.request().method()} ${response.url()}`));
  }

  addError(text) {
    this.errors.push(text);
  }

  /** Errors that this scenario causes on purpose. */
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  /** Fails if there were errors that are not allowed. */
  checkErrors() {
    const unexpected = this.errors.filter((text) => !this.allowed.some((pattern) => pattern.test(text)));
    check(!unexpected.length, `errors on the page:\n${unexpected.join("\n")}`);
  }

  /** Opens a URL with a token, and confirms the dialog if there is one. */
  async openLink(url) {
    const { page } = this;
    await page.goto(url);
    const yes = page.locator("dialog[open] button[type=submit]");
    await page.locator("#connection").or(yes).first().waitFor();
    if (await yes.count()) await yes.click();
  }

  async signIn(token, hash = "#/") {
    await this.openLink(`${BASE}/#token=${token}`);
    await this.page.locator("#connection.ok").waitFor();
    if (hash !== "#/") await this.go(hash);
    else await this.page.locator("#health").waitFor();
  }

  async go(hash) {
    await this.page.evaluate((to) => (location.hash = to), hash);
    await this.page.locator("main h1").first().waitFor({ state: "attached" });
  }

  /** Clicks an action and confirms its dialog. Returns the text of the dialog and of the message afterwards. */
  async act(action, within = "main") {
    const { page } = this;
    await page.locator(`${within} [data-action="${action}"]`).first().click();
    const dialog = page.locator("dialog[open]");
    await dialog.waitFor();
    const text = await dialog.locator("#dialog-text").innerText();
    check(text.length > 20, `the dialog does not say what will happen: ${text}`);
    const numbers = () => page.locator(".toast").evaluateAll((toasts) => toasts.map((toast) => Number(toast.dataset.number)));
    const before = Math.max(0, ...(await numbers()));
    await dialog.locator("button[type=submit]").click();
    const number = await until(async () => (await numbers()).find((fresh) => fresh > before), "the message appears");
    const toast = page.locator(`.toast[data-number="${number}"]`);
    return { text, outcome: await toast.innerText(), isBad: (await toast.getAttribute("class")).includes("bad") };
  }

  /** Drags files from the disk onto an element with the browser's own drag events. */
  async drop(selector, paths) {
    const box = await this.page.locator(selector).boundingBox();
    const [x, y] = [box.x + box.width / 2, box.y + 20];
    const session = await this.page.context().newCDPSession(this.page);
    const data = { items: [], files: paths, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver"]) await session.send("Input.dispatchDragEvent", { type, x, y, data });
    await this.page.locator(`${selector}.over`).waitFor();
    // The session stays attached: Chromium 148 ends the throttling of the page with the first session that is detached.
    await session.send("Input.dispatchDragEvent", { type: "drop", x, y, data });
  }

  /** Fails if axe finds a violation in what is shown now: its default rules cover WCAG A and AA and best practices. */
  async checkAccessibility(where) {
    await this.page.evaluate(axeSource);
    const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const report = violations.map((rule) => `${rule.id} (${rule.impact}): ${rule.help}\n${rule.nodes.slice(0, 3).map((node) => `    ${node.html}\n    ${node.failureSummary}`).join("\n")}`);
    check(!violations.length, `${where} is not accessible:\n${report.join("\n")}`);
  }

  async screenshot(name, fullPage = false) {
    mkdirSync(SCREENSHOTS, { recursive: true });
    await this.page.evaluate(() => document.activeElement?.blur());
    await this.page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage, animations: "disabled" });
  }
}

/** Writes a file that can be dragged or chosen, and returns its path. */
export function fileOf(name, content) {
  const path = join(PLACE, name);
  writeFileSync(path, content);
  return path;
}

/** Slows down the uploads of this page, so that their progress can be seen. Returns the function that ends it. */
export async function throttle(page, bytesPerSecond) {
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  const set = (uploadThroughput) => session.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput });
  await set(bytesPerSecond);
  return () => set(-1);
}

/** Runs a scenario in its own browser. `play` gets functions that open windows and browser contexts. */
export async function scenario(play) {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
  const contexts = [];
  const windows = [];
  async function context(options = {}) {
    const created = await browser.newContext({ viewport: { width: 1280, height: 900 }, colorScheme: "light", locale: "en-GB", ...options });
    created.setDefaultTimeout(TIMEOUT_MS);
    // Not every browser reports violations of the content security policy on the console.
    await created.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`)));
    contexts.push(created);
    return created;
  }
  async function open(options = {}, within = null) {
    const window = new Window(await (within ?? (await context(options))).newPage());
    windows.push(window);
    return window;
  }
  try {
    await play({ open, context });
    for (const window of windows) window.checkErrors();
  } catch (error) {
    for (const [at, { page, errors }] of windows.entries()) {
      if (page.isClosed()) continue;
      mkdirSync(SCREENSHOTS, { recursive: true });
      await page.screenshot({ path: join(SCREENSHOTS, `failure-${process.env.SCENARIO}-${at}.png`), fullPage: true }).catch(() => {});
      console.error(`window ${at} at ${page.url()}:\n${errors.join("\n")}`);
    }
    console.error(error);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}
