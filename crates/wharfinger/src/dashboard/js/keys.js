// The list of service keys, for operators. Keys are created and revoked on the command line.

import { now } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { loading, placeholder, section, table } from "./tables.js";
import { number, time } from "./words.js";

function state(key) {
  if (key.revokedAt) return h("span", { class: "badge bad" }, icon("cross"), "revoked ", time(key.revokedAt));
  if (key.expiresAt && Date.parse(key.expiresAt) <= now()) return h("span", { class: "badge warn" }, icon("clock"), "expired");
  return h("span", { class: "badge ok" }, icon("check"), "valid");
}

const or = (value, text) => value ?? h("span", { class: "muted" }, text);

export function keysSection() {
  const list = live.keys?.keys;
  const content = !list || live.errors.keys ? loading("keys")
    : !list.length ? placeholder("There are no service keys.")
      : table("Service keys", [
        { name: "Key", isHead: true, cell: (key) => h("div", {}, key.name && h("span", { class: "name" }, key.name), h("p", {}, h("code", {}, key.keyId))) },
        { name: "Role", cell: (key) => key.role },
        { name: "Tenant", cell: (key) => or(key.tenant, "none") },
        { name: "User", cell: (key) => or(key.user, "none") },
        { name: "Created", cell: (key) => time(key.createdAt) },
        { name: "Last use", cell: (key) => (key.lastUsedAt ? time(key.lastUsedAt) : or(null, "not used yet")) },
        { name: "Expires", cell: (key) => (key.expiresAt ? time(key.expiresAt) : or(null, "never")) },
        { name: "State", cell: state },
      ], list, (key) => key.keyId);
  return section("keys", "Service keys", [content, live.keys?.nextCursor ? placeholder(`The newest ${number(list.length)} are shown. There are more.`) : null],
    { wide: true, hint: ["Tokens for programs. Create one with ", h("code", {}, "wharfinger key create"), ", revoke it with ", h("code", {}, "wharfinger key revoke"), "."] });
}
