// What this person was told: files ready, failed, warned about, cleaned up.

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { loading, nothing, section } from "./tables.js";
import { bytes, time } from "./words.js";

const LOOKS = { "file-ready": ["check", "ok"], "file-failed": ["cross", "bad"], "file-quarantined": ["warn", "bad"], "file-deletion-warning": ["warn", "warn"], "batch-expired": ["clock", "warn"] };

function line(notice) {
  const [shape, kind] = LOOKS[notice.kind] ?? ["clock", "wait"];
  const size = notice.data?.sizeReclaimed;
  return h("li", { class: "notice", "data-key": notice.id },
    h("span", { class: `dot ${kind}` }, icon(shape)),
    h("div", {},
      h("p", {}, notice.fileId ? h("a", { href: `#/files/${notice.fileId}` }, notice.message) : notice.message),
      h("p", { class: "muted" }, notice.kind.replaceAll("-", " "), " · ", time(notice.createdAt), size ? ` · ${bytes(size)} freed` : "")));
}

export function noticeList(most) {
  if (!live.notices) return loading("notices");
  if (!live.notices.length) return nothing("Nobody has told you anything yet: when a file of yours is ready, fails or is cleaned up, it stands here.");
  return h("ol", { class: "notices" }, live.notices.slice(0, most).map(line));
}

export const notices = {
  title: "Notifications",
  render: () => [h("h1", {}, "Notifications"), section("notices", "What you were told", noticeList(50), { wide: true, hint: "Newest first. They come live while this page is open." })],
};
