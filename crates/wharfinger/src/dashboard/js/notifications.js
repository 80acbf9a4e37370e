// The notifications of the user: files that became ready, failed, will be deleted or were removed.

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { live } from "./live.js";
import { loading, placeholder, section } from "./tables.js";
import { bytes, time } from "./words.js";

const ICONS = { "file-ready": ["check", "ok"], "file-failed": ["cross", "bad"], "file-quarantined": ["warn", "bad"], "file-deletion-warning": ["warn", "warn"], "batch-expired": ["clock", "warn"] };

function line(notification) {
  const [shape, kind] = ICONS[notification.kind] ?? ["clock", "wait"];
  const size = notification.data?.sizeReclaimed;
  return h("li", { class: "notification", "data-key": notification.id },
    h("span", { class: `dot ${kind}` }, icon(shape)),
    h("div", {},
      h("p", {}, notification.fileId ? h("a", { href: `#/files/${notification.fileId}` }, notification.message) : notification.message),
      h("p", { class: "muted" }, notification.kind.replaceAll("-", " "), " · ", time(notification.createdAt), size ? ` · ${bytes(size)} freed` : "")));
}

export function notificationList(most) {
  if (!live.notifications) return loading("notifications");
  if (!live.notifications.length) return placeholder("No notifications yet. You get one when a file of yours becomes ready, fails or is removed.");
  return h("ol", { class: "notifications" }, live.notifications.slice(0, most).map(line));
}

export const notifications = {
  title: "Notifications",
  render: () => [h("h1", {}, "Notifications"), section("notifications", "Events of your files", notificationList(50), { wide: true, hint: "Newest first. New notifications appear while this page is open." })],
};
