// The upload page: a box to drop or choose files, and a row with the progress of each upload.

import { actionButton } from "./action_button.js";
import { h } from "./dom.js";
import { icon, badge } from "./icons.js";
import { emitChange } from "./live.js";
import { placeholder, section } from "./tables.js";
import { toast } from "./toasts.js";
import * as uploads from "./uploads.js";
import { bytes, number, plural } from "./words.js";

let dragDepth = 0;

/** The files of a dropped folder, and of the folders in it. */
async function walk(entry, found) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    found.push({ file, path: entry.fullPath.replace(/^\//, "") });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // A browser may return the entries of a folder in several pieces.
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!entries.length) return;
    for (const inner of entries) await walk(inner, found);
  }
}

async function droppedFiles(transfer) {
  const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.());
  const plain = [...transfer.files].map((file) => ({ file, path: file.name }));
  if (!entries.some((entry) => entry?.isDirectory)) return plain;
  const found = [];
  for (const entry of entries.filter(Boolean)) await walk(entry, found);
  return found;
}

/** `files` may be a promise: a dropped folder is still being read. */
async function startUploads(files) {
  try {
    const chosen = await files;
    if (!chosen.length) return toast("bad", "No files found. Drop or choose at least one file.");
    await uploads.add(chosen);
  } catch (error) {
    toast("bad", "The upload could not start.", error.message);
  }
  return undefined;
}

const fromInput = (event) => {
  const chosen = [...event.target.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  event.target.value = "";
  startUploads(chosen);
};

const dragging = (change) => (event) => {
  event.preventDefault();
  dragDepth = Math.max(0, dragDepth + change);
  emitChange();
};

function dropZone() {
  const drop = (event) => {
    event.preventDefault();
    dragDepth = 0;
    emitChange();
    startUploads(droppedFiles(event.dataTransfer));
  };
  return h("div", {
    class: dragDepth ? "drop over" : "drop", id: "drop", ondragenter: dragging(1), ondragleave: dragging(-1), ondragover: (event) => event.preventDefault(), ondrop: drop,
  },
    icon("upload"),
    h("p", { class: "drop-title" }, "Drop files or folders here"),
    h("p", { class: "muted" }, "Bytes are sent directly to the store, large files in parts. Uploads continue after a reload of this page."),
    h("div", { class: "buttons" },
      h("label", { class: "button primary" }, "Choose files", h("input", { type: "file", multiple: true, class: "visually-hidden", id: "choose-files", onchange: fromInput })),
      h("label", { class: "button" }, "Choose a folder", h("input", { type: "file", multiple: true, webkitdirectory: true, class: "visually-hidden", id: "choose-folder", onchange: fromInput }))));
}

/** Without this the browser opens a file that is dropped outside the box, and this page is gone. */
function refuseDropOutside(event) {
  if (!event.dataTransfer?.types.includes("Files") || event.target.closest?.("#drop, input[type=file]")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, refuseDropOutside);

const STATES = {
  "other-tab": "Uploading in another tab",
  waiting: "Waiting",
  confirming: "Sent. The server is checking it",
  cancelled: "Cancelled",
  "needs-file": "This browser no longer has the bytes. Choose the same file again",
};

function stateOf(item) {
  if (item.state === "sending") return `${bytes(item.sent)} of ${bytes(item.size)}`;
  if (item.state === "failed") return h("span", { class: "error" }, item.error);
  if (item.state === "processing" || item.state === "done") return [badge(item.status || "queued"), item.why ? h("span", { class: "muted" }, ` ${item.why}`) : null];
  return [STATES[item.state], item.error ? h("span", { class: "error" }, ` ${item.error}`) : null];
}

const cancelButton = (item) => actionButton({
  key: `cancel-${item.key}`, label: "Cancel", describe: `Cancel the upload of ${item.name}`, kind: "quiet",
  dialog: {
    title: "Cancel this upload?",
    text: [`The upload of “${item.name}” (${bytes(item.size)}) stops. Bytes that are already sent are deleted.`, "The reserved quota is released."],
    confirmLabel: "Cancel upload", cancelLabel: "Keep uploading", isDanger: true,
  },
  async run() {
    if (!uploads.canCancel(item)) return { text: `“${item.name}” is not cancelled.`, detail: "The upload was already complete. Delete the file instead.", isBad: true };
    item.isCancelling = true;
    try {
      await uploads.cancel(item);
      return { text: `The upload of “${item.name}” is cancelled.`, detail: "The reserved quota is released." };
    } catch (error) {
      return { text: `The upload of “${item.name}” is stopped here, but not cancelled on the server.`, detail: error.message, isBad: true };
    } finally {
      item.isCancelling = false;
    }
  },
});

function row(item) {
  const isActive = ["waiting", "sending", "confirming"].includes(item.state);
  const share = item.size ? Math.round((item.sent / item.size) * 100) : item.state === "sending" ? 100 : 0;
  const name = item.fileId && ["processing", "done"].includes(item.state) ? h("a", { href: `#/files/${item.fileId}` }, item.name) : item.name;
  return h("li", { class: `upload ${item.state}`, "data-key": item.key, "data-name": item.name, "data-state": item.state },
    h("div", { class: "upload-name" }, h("span", { class: "name" }, name), h("span", { class: "muted" }, bytes(item.size))),
    h("div", { class: "upload-state" }, stateOf(item)),
    isActive && h("progress", { max: 100, value: share, "aria-label": `Upload of ${item.name}` }),
    h("div", { class: "buttons" },
      item.state === "failed" && h("button", { type: "button", onclick: () => uploads.retry(item), "aria-label": `Try again: ${item.name}` }, "Try again"),
      item.state === "needs-file" && h("label", { class: "button" }, "Choose again",
        h("input", { type: "file", class: "visually-hidden", onchange: (event) => event.target.files[0] && uploads.chooseAgain(item, event.target.files[0]) })),
      (uploads.canCancel(item) || item.isCancelling) && cancelButton(item)));
}

function summary(items) {
  const active = items.filter((item) => item.state !== "cancelled");
  const size = active.reduce((all, item) => all + item.size, 0);
  const sent = active.reduce((all, item) => all + item.sent, 0);
  const count = (...states) => active.filter((item) => states.includes(item.state)).length;
  const left = count("waiting", "sending", "confirming");
  if (!active.length) return null;
  return h("div", { class: "upload-total" },
    h("span", {}, left ? `Uploading ${plural(left, "file")}` : `${plural(count("processing", "done"), "file")} uploaded`),
    h("span", { class: "muted" }, `${bytes(sent)} of ${bytes(size)}`),
    h("progress", { max: 100, value: size ? Math.round((sent / size) * 100) : 100, "aria-label": "Progress of all uploads" }));
}

const ROWS_MAX = 200;

export const upload = {
  title: "Upload",
  render() {
    const items = [...uploads.items].reverse();
    const canClear = items.some((item) => ["done", "cancelled"].includes(item.state));
    return [
      h("h1", {}, "Upload"),
      section("choose", "Files to upload", dropZone(), { wide: true }),
      section("uploads", "Your uploads", items.length
        ? [summary(items), h("ul", { class: "uploads" }, items.slice(0, ROWS_MAX).map(row)), items.length > ROWS_MAX && placeholder(`and ${number(items.length - ROWS_MAX)} more`)]
        : placeholder("No uploads yet. Files that you add together form one batch: either all fit into the quota, or none is uploaded."),
      { wide: true, tools: canClear && h("button", { type: "button", class: "quiet", onclick: uploads.clear }, "Clear finished uploads") }),
    ];
  },
};
