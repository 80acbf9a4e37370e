// Each role sees what it may call and calls nothing else.

import { check, put, waitForStatus, same, scenario, tokens, until } from "./scenario.mjs";

const PAGES = ["#/", "#/files", "#/upload", "#/recovery", "#/maintenance", "#/sweeps", "#/sweeps/quota-sync", "#/notifications"];
const OPERATORS = /\/maintenance\/(sweeps|spool)|\/api\/v2\/(tenants|keys)/;
const ADMINS = /\/maintenance\/(cleanup|deletions)/;

await scenario(async ({ open }) => {
  await waitForStatus(tokens.user, await put(tokens.user, "mine.txt", "mine"), "ready");
  await waitForStatus(tokens.operator, await put(tokens.operator, "theirs.txt", "theirs"), "ready");
  const called = {};
  for (const role of ["user", "admin", "operator"]) {
    const window = await open();
    await window.signIn(tokens[role]);
    for (const hash of PAGES) {
      await window.go(hash);
      if (hash === "#/files") await window.page.locator("a.name").first().waitFor();
      await window.page.waitForLoadState();
    }
    const links = await window.page.locator("nav a").allInnerTexts();
    same(links.includes("Sweeps"), role === "operator", `${role}: sweeps in the navigation`);
    called[role] = window.requests.map((request) => new URL(request.url()).pathname);
    await window.go("#/files");
    await window.page.locator("a.name", { hasText: "mine.txt" }).waitFor();
    same(await window.page.locator("a.name", { hasText: "theirs.txt" }).count(), role === "operator" ? 1 : 0, `${role}: the file of another user`);
    window.checkErrors();
  }
  check(!called.user.some((path) => OPERATORS.test(path) || ADMINS.test(path)), `a user called ${called.user}`);
  check(!called.admin.some((path) => OPERATORS.test(path)) && called.admin.some((path) => ADMINS.test(path)), `an admin called ${called.admin}`);
  check(called.operator.some((path) => OPERATORS.test(path)), `an operator called ${called.operator}`);

  // An operator selects one tenant.
  const window = await open();
  await window.signIn(tokens.operator);
  const ready = window.page.locator('[data-status="ready"] .step-count');
  await ready.filter({ hasText: "2" }).waitFor();
  await window.page.selectOption("#tenant", "acme");
  await ready.filter({ hasText: "1" }).waitFor();
  const isAskedFor = (path) => window.requests.some((request) => request.url().includes(path) && request.url().includes("tenant=acme"));
  for (const path of ["/api/v2/dlq?", "/maintenance/cleanup/pending?", "/uploads/orphans?"]) await until(() => isAskedFor(path), `${path} of acme alone`);
  await window.go("#/files");
  await window.page.locator("a.name", { hasText: "mine.txt" }).waitFor();
  same(await window.page.locator("a.name").count(), 1, "files of acme alone");
  await window.page.selectOption("#tenant", "");
  await window.page.locator("a.name", { hasText: "theirs.txt" }).waitFor();
  await window.go("#/");
  await ready.filter({ hasText: "2" }).waitFor();
});
