// What operators and admins did, newest first.

import { h } from "./dom.js";
import { live } from "./live.js";
import { loading, placeholder, section, table } from "./tables.js";
import { number, time } from "./words.js";

const ACTIONS = {
  "quota-limit-set": "Quota limit set",
  "policy-set": "Rules set",
  "key-created": "Service key created",
  "key-revoked": "Service key revoked",
  "file-released": "File released from quarantine",
  "dead-letter-discarded": "Failed file removed from the list",
  "cleanups-triggered": "Deletes retried",
  "sweep-requested": "Sweep started by hand",
};

function detail(entry) {
  const members = Object.entries(entry.detail ?? {}).filter(([, value]) => value !== null);
  return members.length ? h("code", {}, members.map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")) : null;
}

export function auditSection() {
  const list = live.audit?.entries;
  const content = !list || live.errors.audit ? loading("audit")
    : !list.length ? placeholder("Nothing yet: no operator or admin has changed anything.")
      : table("Changes by operators and admins", [
        { name: "When", cell: (entry) => time(entry.at) },
        { name: "Who", isHead: true, cell: (entry) => (entry.actor === "cli" ? "command line" : entry.actor) },
        { name: "What", cell: (entry) => h("div", {}, ACTIONS[entry.action] ?? entry.action, h("p", {}, detail(entry))) },
        { name: "To what", cell: (entry) => h("code", {}, entry.subject) },
      ], list, (entry) => `${entry.at}-${entry.action}-${entry.subject}`);
  return section("audit", "Changes by operators and admins", [content, live.audit?.nextCursor ? placeholder(`The newest ${number(list.length)} are shown. There are more.`) : null], { wide: true });
}
