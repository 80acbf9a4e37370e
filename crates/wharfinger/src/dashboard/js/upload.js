// The upload page: where files are dropped or chosen, and a row for each with its progress.

import { actionButton } from "./actions.js";
import { h } from "./dom.js";
import { icon, badge } from "./icons.js";
import { toast } from "./toasts.js";
import { nothing, section } from "./tables.js";
import * as uploads from "./uploads.js";
import { bytes, number, plural } from "./words.js";
import { tell } from "./live.js";

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
    // A folder is read a hundred entries at a time.
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!entries.length) return;
    for (const inner of entries) await walk(inner, found);
  }
}

async function dropped(transfer) {
  const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.());
  const plain = [...transfer.files].map((file) => ({ file, path: file.name }));
  if (!entries.some((entry) => entry?.isDirectory)) return plain;
  const found = [];
  for (const entry of entries.filter(Boolean)) await walk(entry, found);
  return found;
}

/** `reading` may still be going through a folder. */
async function begin(reading) {
  try {
    const chosen = await reading;
    if (!chosen.length) return toast("bad", "There was no file in that.");
    await uploads.add(chosen);
  } catch (error) {
    toast("bad", "The upload could not begin.", error.message);
  }
  return undefined;
}

const fromInput = (event) => {
  const chosen = [...event.target.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  event.target.value = "";
  begin(chosen);
};

const dragging = (change) => (event) => {
  event.preventDefault();
  dragDepth = Math.max(0, dragDepth + change);
  tell();
};

function dropZone() {
  const drop = (event) => {
    event.preventDefault();
    dragDepth = 0;
    tell();
    begin(dropped(event.dataTransfer));
  };
  return h("div", {
    class: dragDepth ? "drop over" : "drop", id: "drop", ondragenter: dragging(1), ondragleave: dragging(-1), ondragover: (event) => event.preventDefault(), ondrop: drop,
  },
    icon("upload"),
    h("p", { class: "drop-title" }, "Drop files or folders here"),
    h("p", { class: "muted" }, "They go straight to the store, in parts where they are large. After a reload they go on by themselves."),
    h("div", { class: "buttons" },
      h("label", { class: "button primary" }, "Choose files", h("input", { type: "file", multiple: true, class: "visually-hidden", id: "choose-files", onchange: fromInput })),
      h("label", { class: "button" }, "Choose a folder", h("input", { type: "file", multiple: true, webkitdirectory: true, class: "visually-hidden", id: "choose-folder", onchange: fromInput }))));
}

/** A file that is dropped beside the box would be opened in place of this page. */
function refuseBeside(event) {
  if (!event.dataTransfer?.types.includes("Files") || event.target.closest?.("#drop, input[type=file]")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, refuseBeside);

const WORDS = {
  elsewhere: "Being sent in another tab",
  waiting: "Waits its turn",
  confirming: "All sent; the server checks it",
  cancelled: "Cancelled",
  "needs-file": "This browser no longer has the bytes: choose the same file again",
};

function stateOf(item) {
  if (item.state === "sending") return `${bytes(item.sent)} of ${bytes(item.size)}`;
  if (item.state === "failed") return h("span", { class: "wrong" }, item.error);
  if (item.state === "following" || item.state === "done") return [badge(item.status || "queued"), item.why ? h("span", { class: "muted" }, ` ${item.why}`) : null];
  return [WORDS[item.state], item.error ? h("span", { class: "wrong" }, ` ${item.error}`) : null];
}

const cancelButton = (item) => actionButton({
  key: `cancel-${item.key}`, label: "Cancel", describe: `Cancel the upload of ${item.name}`, kind: "quiet",
  confirm: {
    title: "Cancel this upload?",
    says: [`The upload of “${item.name}” (${bytes(item.size)}) stops, and what has been sent of it is thrown away.`, "Its room in the quota is free at once."],
    verb: "Cancel the upload", no: "Go on", isDanger: true,
  },
  async run() {
    if (!uploads.canCancel(item)) return { text: `“${item.name}” is not cancelled.`, detail: "All its bytes have arrived meanwhile: delete the file instead.", isBad: true };
    item.isCancelling = true;
    try {
      await uploads.cancel(item);
      return { text: `The upload of “${item.name}” is cancelled.`, detail: "Its room in the quota is free again." };
    } catch (error) {
      return { text: `The upload of “${item.name}” is stopped, but the server could not be told.`, detail: error.message, isBad: true };
    } finally {
      item.isCancelling = false;
    }
  },
});

function row(item) {
  const isUnderWay = ["waiting", "sending", "confirming"].includes(item.state);
  const share = item.size ? Math.round((item.sent / item.size) * 100) : item.state === "sending" ? 100 : 0;
  const name = item.fileId && ["following", "done"].includes(item.state) ? h("a", { href: `#/files/${item.fileId}` }, item.name) : item.name;
  return h("li", { class: `upload ${item.state}`, "data-key": item.key, "data-name": item.name, "data-state": item.state },
    h("div", { class: "upload-name" }, h("span", { class: "name" }, name), h("span", { class: "muted" }, bytes(item.size))),
    h("div", { class: "upload-state" }, stateOf(item)),
    isUnderWay && h("progress", { max: 100, value: share, "aria-label": `Upload of ${item.name}` }),
    h("div", { class: "buttons" },
      item.state === "failed" && h("button", { type: "button", onclick: () => uploads.retry(item), "aria-label": `Try again: ${item.name}` }, "Try again"),
      item.state === "needs-file" && h("label", { class: "button" }, "Choose it again",
        h("input", { type: "file", class: "visually-hidden", onchange: (event) => event.target.files[0] && uploads.giveFile(item, event.target.files[0]) })),
      (uploads.canCancel(item) || item.isCancelling) && cancelButton(item)));
}

function summary(items) {
  const active = items.filter((item) => item.state !== "cancelled");
  const size = active.reduce((all, item) => all + item.size, 0);
  const sent = active.reduce((all, item) => all + item.sent, 0);
  const left = active.filter((item) => ["waiting", "sending", "confirming"].includes(item.state)).length;
  if (!active.length) return null;
  return h("div", { class: "upload-total" },
    h("span", {}, left ? `${plural(left, "file")} on the way` : `${plural(active.length, "file")} handed over`),
    h("span", { class: "muted" }, `${bytes(sent)} of ${bytes(size)}`),
    h("progress", { max: 100, value: size ? Math.round((sent / size) * 100) : 100, "aria-label": "All uploads together" }));
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
      section("under-way", "Your uploads", items.length
        ? [summary(items), h("ul", { class: "uploads" }, items.slice(0, ROWS_MAX).map(row)), items.length > ROWS_MAX && nothing(`and ${number(items.length - ROWS_MAX)} more`)]
        : nothing("Nothing yet. Several files at once become one batch: charged together, completed together."),
      { wide: true, tools: canClear && h("button", { type: "button", class: "quiet", onclick: uploads.clear }, "Clear the finished") }),
    ];
  },
};
