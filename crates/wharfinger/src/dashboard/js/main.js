// The frame of the page: who is here, where they are, and drawing again when something has changed.

import { ask } from "./actions.js";
import { expire, now, whenSignedOut } from "./api.js";
import { h, show } from "./dom.js";
import { filePage } from "./file.js";
import { files } from "./files.js";
import * as liveness from "./live.js";
import { brandMark } from "./icons.js";
import { notices } from "./notices.js";
import { overview } from "./overview.js";
import { problems } from "./problems.js";
import { recovery } from "./recovery.js";
import { current, fromAddress, isOperator, read, resume, signIn, signOut } from "./session.js";
import { signInPage } from "./signin.js";
import { sweeps } from "./sweeps.js";
import { applyTheme, themeSwitch } from "./theme.js";
import { toast } from "./toasts.js";
import { upload } from "./upload.js";
import { upkeep } from "./upkeep.js";
import * as uploads from "./uploads.js";
import { number, time } from "./words.js";

const { live } = liveness;
const DRAW_MS_MIN = 80;
const TICK_MS = 10_000;

const PAGES = { "": overview, files, upload, recovery, upkeep, sweeps, notifications: notices };

let page = null;
let argument = "";
let drawing = 0;
let drawnAt = 0;

/** An address is whatever somebody typed. */
function plain(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [name = "", wanted = ""] = location.hash.replace(/^#\/?/, "").split("/");
  if (name === "files" && wanted) return [filePage, plain(wanted)];
  const found = Object.hasOwn(PAGES, name) ? PAGES[name] : overview;
  return [found === sweeps && !isOperator() ? overview : found, ""];
}

function navigate() {
  // The skip link's target is a place on the page and no page of its own.
  if (location.hash === "#main") return history.replaceState(null, "", `#/`);
  const [next, wanted] = route();
  if (next === page && wanted === argument) return draw();
  const isFirst = page === null;
  page?.leave?.();
  [page, argument] = [next, wanted];
  page.enter?.(wanted);
  drawNow();
  scrollTo(0, 0);
  if (!isFirst) document.getElementById("main")?.focus({ preventScroll: true });
  return undefined;
}

function links() {
  const list = [["", "Overview"], ["files", "Files"], ["upload", "Upload"], ["recovery", "Recovery"], ["upkeep", "Upkeep"], isOperator() && ["sweeps", "Sweeps"], ["notifications", "Notifications"]];
  const here = page === filePage ? files : page;
  const trouble = (live.dashboard?.stuckFiles ?? 0) + (live.dashboard?.dlqDepth ?? 0);
  const sending = uploads.items.filter((item) => ["waiting", "sending", "confirming"].includes(item.state)).length;
  const counts = { recovery: trouble, upload: sending };
  return h("nav", { "aria-label": "Pages" }, h("ul", {}, list.filter(Boolean).map(([name, label]) => h("li", {},
    h("a", { href: `#/${name}`, "aria-current": PAGES[name] === here ? "page" : null }, label,
      counts[name] ? h("span", { class: name === "recovery" ? "pip bad" : "pip" }, number(counts[name])) : null)))));
}

const LINES = { live: ["ok", "Live"], connecting: ["wait", "Connecting"], away: ["bad", "Not connected"] };

function tenantPicker() {
  if (!isOperator() || !live.tenants?.tenants.length) return null;
  const names = live.tenants.tenants.map((tenant) => tenant.tenant);
  return h("label", { class: "picker", "data-key": "tenant" }, h("span", {}, "Tenant"),
    h("select", { id: "tenant", onchange: (event) => liveness.lookAt(event.target.value) },
      h("option", { value: "" }, "All"), names.map((name) => h("option", { value: name, "data-key": name, selected: name === live.tenant }, name))));
}

function header() {
  const { user, tenant, role, expiresAt } = current();
  const [kind, word] = LINES[live.isCut ? "away" : live.line];
  const leave = () => {
    signOut();
    leavePage();
  };
  return h("header", { class: "top", "data-key": "top" },
    h("div", { class: "top-row" },
      h("a", { class: "brand", href: "#/" }, brandMark(28), "Wharfinger"),
      h("span", { class: `line ${kind}`, id: "line", title: "Whether this page hears of changes as they happen" }, h("span", { class: "lamp" }), word),
      tenantPicker(),
      h("div", { class: "who" },
        h("span", { id: "who" }, h("strong", {}, user), h("span", { class: "muted" }, `${tenant} · ${role}`)),
        h("span", { class: "muted ends" }, "token ends ", time(new Date(expiresAt).toISOString()))),
      themeSwitch(),
      h("button", { type: "button", class: "quiet", id: "sign-out", onclick: leave }, "Sign out")),
    links());
}

function drawNow() {
  clearTimeout(drawing);
  drawing = 0;
  drawnAt = Date.now();
  const app = document.getElementById("app");
  if (!current()) return show(app, [signInPage(enter)]);
  const content = page.render(argument).flat(Infinity).filter((node) => node instanceof Node);
  const name = page === filePage ? content.find((node) => node.classList?.contains("file-head"))?.querySelector("h1")?.textContent ?? "File" : page.title;
  const trouble = live.dashboard || live.isCut ? problems().length : 0;
  document.title = `${trouble ? `(${trouble}) ` : ""}${name} · Wharfinger`;
  const main = h("main", { id: "main", tabindex: "-1", "data-key": `page-${page.title}-${argument}` }, content);
  return show(app, [header(), main]);
}

/** Soon, and not more often than eyes can follow. */
function draw() {
  drawing ||= setTimeout(drawNow, Math.max(0, drawnAt + DRAW_MS_MIN - Date.now()));
}

function enter() {
  liveness.begin();
  page = null;
  navigate();
  uploads.takeUp();
}

function leavePage() {
  // Questions and messages may name what whoever comes next is not to read.
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
  document.getElementById("toasts").replaceChildren();
  uploads.forget();
  liveness.end();
  page?.leave?.();
  page = null;
  document.getElementById("app").replaceChildren();
  drawNow();
  document.getElementById("token")?.focus();
}

/** A token that came by the address. Anybody can make a link, and what is uploaded then is theirs: it is asked first. */
async function consider(token) {
  const before = current();
  try {
    const next = read(token);
    if (next.token === before?.token) return;
    if (!before) drawNow();
    const isSame = before && ["user", "tenant", "role"].every((part) => before[part] === next[part]);
    const says = [`The address you opened has a token for ${next.user} (${next.tenant} · ${next.role}).`];
    if (before) {
      says[0] += ` You are ${before.user} (${before.tenant} · ${before.role}).`;
      says.push(`Uploads of ${before.user} that are under way here wait until ${before.user} signs in again.`);
    } else {
      says.push(`Go on only if you trust where the address comes from: files that you upload will belong to ${next.user}.`);
    }
    const isMeant = isSame || await ask({
      title: `Sign in as ${next.user}?`, says, verb: `Sign in as ${next.user}`,
      no: before ? `Stay ${before.user}` : "Cancel", isDanger: Boolean(before),
    });
    if (!isMeant) return;
    if (current()) {
      signOut();
      leavePage();
    }
    signIn(token);
    enter();
  } catch (error) {
    if (current()) return toast("bad", "The token in the address is not taken.", error.message);
    signOut(error.message);
    drawNow();
  }
}

function tick() {
  if (!current()) return;
  if (current().expiresAt <= now()) expire("it is over");
  else draw();
}

applyTheme();
whenSignedOut(leavePage);
liveness.watch(draw);
addEventListener("hashchange", () => {
  // An address with a token that is opened in a tab that is here already.
  const token = fromAddress();
  if (current()) navigate();
  if (token) consider(token);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
setInterval(tick, TICK_MS);
const offered = fromAddress();
if (resume()) enter();
else if (!offered) drawNow();
if (offered) consider(offered);
