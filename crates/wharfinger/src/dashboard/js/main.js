// The frame of the page: header, navigation, sign-in and sign-out, and drawing again after a change.

import { confirm } from "./action_button.js";
import { expire, identify, now, onSignOut } from "./api.js";
import { h, show } from "./dom.js";
import { filePage } from "./file.js";
import { files } from "./files.js";
import { brandMark } from "./icons.js";
import * as liveData from "./live.js";
import { maintenance } from "./maintenance.js";
import { notifications } from "./notifications.js";
import { overview } from "./overview.js";
import { problems } from "./problems.js";
import { recovery } from "./recovery.js";
import { current, isOperator, restoreSession, signIn, signOut, takeTokenFromUrl } from "./session.js";
import { signInPage } from "./signin.js";
import { sweepPage } from "./sweep_runs.js";
import { sweeps } from "./sweeps.js";
import { applyTheme, themeSwitch } from "./theme.js";
import { toast } from "./toasts.js";
import { upload } from "./upload.js";
import * as uploads from "./uploads.js";
import { number, time } from "./words.js";

const { live } = liveData;
const DRAW_MS_MIN = 80;
const TICK_MS = 10_000;

const PAGES = { "": overview, files, upload, recovery, maintenance, sweeps, notifications };

let page = null;
let argument = "";
let drawing = 0;
let drawnAt = 0;

/** The part of the URL as it is if it cannot be decoded: a person may have typed anything. */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [name = "", wanted = ""] = location.hash.replace(/^#\/?/, "").split("/");
  if (name === "files" && wanted) return [filePage, decode(wanted)];
  if (name === "sweeps" && wanted && isOperator()) return [sweepPage, decode(wanted)];
  const found = Object.hasOwn(PAGES, name) ? PAGES[name] : overview;
  return [found === sweeps && !isOperator() ? overview : found, ""];
}

function navigate() {
  // The target of the skip link is not a page.
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
  const list = [["", "Overview"], ["files", "Files"], ["upload", "Upload"], ["recovery", "Recovery"], ["maintenance", "Maintenance"], isOperator() && ["sweeps", "Sweeps"], ["notifications", "Notifications"]];
  const shown = page === filePage ? files : page === sweepPage ? sweeps : page;
  const toRecover = (live.dashboard?.stuckFiles ?? 0) + (live.dashboard?.dlqDepth ?? 0);
  const sending = uploads.items.filter((item) => ["waiting", "sending", "confirming"].includes(item.state)).length;
  const counts = { recovery: toRecover, upload: sending };
  return h("nav", { "aria-label": "Pages" }, h("ul", {}, list.filter(Boolean).map(([name, label]) => h("li", {},
    h("a", { href: `#/${name}`, "aria-current": PAGES[name] === shown ? "page" : null }, label,
      counts[name] ? h("span", { class: name === "recovery" ? "nav-count bad" : "nav-count" }, number(counts[name])) : null)))));
}

const CONNECTIONS = { live: ["ok", "Live"], connecting: ["wait", "Connecting"], disconnected: ["bad", "Not connected"] };

function tenantPicker() {
  if (!isOperator() || !live.tenants?.tenants.length) return null;
  const names = live.tenants.tenants.map((tenant) => tenant.tenant);
  return h("label", { class: "picker", "data-key": "tenant" }, h("span", {}, "Tenant"),
    h("select", { id: "tenant", onchange: (event) => liveData.selectTenant(event.target.value) },
      h("option", { value: "" }, "All"), names.map((name) => h("option", { value: name, "data-key": name, selected: name === live.tenant }, name))));
}

function header() {
  const { user, tenant, role, expiresAt } = current();
  const [kind, word] = CONNECTIONS[live.isDisconnected ? "disconnected" : live.connection];
  const leave = () => {
    signOut();
    closePage();
  };
  return h("header", { class: "top", "data-key": "top" },
    h("div", { class: "top-row" },
      h("a", { class: "brand", href: "#/" }, brandMark(28), "Wharfinger"),
      h("span", { class: `connection ${kind}`, id: "connection", title: "Connection to the server. Live: changes are shown as they happen." }, h("span", { class: "indicator" }), word),
      tenantPicker(),
      h("div", { class: "user" },
        h("span", { id: "user" }, h("strong", {}, user), h("span", { class: "muted" }, `${tenant} · ${role}`)),
        h("span", { class: "muted expiry" }, ...(expiresAt === Infinity ? ["key without expiry"] : ["token expires ", time(new Date(expiresAt).toISOString())]))),
      themeSwitch(),
      h("button", { type: "button", class: "quiet", id: "sign-out", onclick: leave }, "Sign out")),
    links());
}

function drawNow() {
  clearTimeout(drawing);
  drawing = 0;
  drawnAt = Date.now();
  const app = document.getElementById("app");
  if (!current()) return show(app, [signInPage(openPage)]);
  const content = page.render(argument).flat(Infinity).filter((node) => node instanceof Node);
  const name = page === filePage ? content.find((node) => node.classList?.contains("file-head"))?.querySelector("h1")?.textContent ?? "File" : page.title;
  const count = live.dashboard || live.isDisconnected ? problems().length : 0;
  document.title = `${count ? `(${count}) ` : ""}${name} · Wharfinger`;
  const main = h("main", { id: "main", tabindex: "-1", "data-key": `page-${page.title}-${argument}` }, content);
  return show(app, [header(), main]);
}

/** Draws soon, but at most once in DRAW_MS_MIN. */
function draw() {
  drawing ||= setTimeout(drawNow, Math.max(0, drawnAt + DRAW_MS_MIN - Date.now()));
}

function openPage() {
  liveData.start();
  page = null;
  navigate();
  uploads.resumeStored();
}

function closePage() {
  // The next user must not see dialogs and messages of this one.
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
  document.getElementById("toasts").replaceChildren();
  uploads.stopAll();
  liveData.stop();
  page?.leave?.();
  page = null;
  document.getElementById("app").replaceChildren();
  drawNow();
  document.getElementById("token")?.focus();
}

/** Asks before it signs in with a token from the URL: the link may come from an attacker, who would then get the uploads. */
async function offerToken(token) {
  try {
    const next = await identify(token);
    const before = current();
    if (next.token === before?.token) return;
    // Only now: the field of the form must not take the focus before the dialog does.
    if (!before) drawNow();
    const isSame = before && ["user", "tenant", "role"].every((part) => before[part] === next[part]);
    const text = [`The link that you opened has a token for ${next.user} (${next.tenant} · ${next.role}).`];
    if (before) {
      text[0] += ` You are signed in as ${before.user} (${before.tenant} · ${before.role}).`;
      text.push(`Uploads of ${before.user} in this tab pause until ${before.user} signs in again.`);
    } else {
      text.push(`Continue only if you trust the sender of the link. Files that you upload will belong to ${next.user}.`);
    }
    const isConfirmed = isSame || await confirm({
      title: `Sign in as ${next.user}?`, text, confirmLabel: `Sign in as ${next.user}`,
      cancelLabel: before ? `Stay signed in as ${before.user}` : "Cancel", isDanger: Boolean(before),
    });
    if (!isConfirmed) return;
    if (current()) {
      signOut();
      closePage();
    }
    signIn(next);
    openPage();
  } catch (error) {
    if (current()) return toast("bad", "Cannot sign in with the token in the link.", error.message);
    signOut(error.message);
    drawNow();
  }
}

function tick() {
  if (!current()) return;
  if (current().expiresAt <= now()) expire("it has expired");
  else draw();
}

applyTheme();
onSignOut(closePage);
liveData.onChange(draw);
addEventListener("hashchange", () => {
  // A link with a token may be opened in a tab that already shows the page.
  const token = takeTokenFromUrl();
  if (current()) navigate();
  if (token) offerToken(token);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
setInterval(tick, TICK_MS);
const offered = takeTokenFromUrl();
if (restoreSession()) openPage();
else if (!offered) drawNow();
if (offered) offerToken(offered);
