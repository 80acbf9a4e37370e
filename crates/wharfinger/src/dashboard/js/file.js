// The page of one file: its properties, its status and its history.

import { deleteFile, processAgain, releaseFile, retryStuck } from "./actions.js";
import { get } from "./api.js";
import { h } from "./dom.js";
import { badge, icon } from "./icons.js";
import { emitChange, live, onNotification } from "./live.js";
import { isOperator } from "./session.js";
import { loading, placeholder, section } from "./tables.js";
import { toast } from "./toasts.js";
import { absolute, bytes, day, duration, exactTime, isFinal, kindOfStatus, number, sentence, stageOfStatus, statusMeaning, time } from "./words.js";

const REFETCH_MS_MIN = 800;
/** Pictures that every browser shows. The server refuses to show types that could run, such as SVG. */
const PREVIEW_TYPES = ["image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "image/avif", "image/bmp"];
const PREVIEW_BYTES_MAX = 20 << 20;

let id = "";
let file = null;
let events = null;
let chunks = null;
let error = "";
let lastDashboard = null;
let timer = 0;
let fetchedAt = 0;
let isDeleted = false;
/** A link to the picture, if the file is one. */
let preview = "";

async function fetchFile() {
  timer = 0;
  fetchedAt = Date.now();
  const fetched = id;
  // The user has left the page, or has deleted the file.
  if (!fetched || isDeleted) return;
  const path = `/api/v2/files/${encodeURIComponent(fetched)}`;
  try {
    const [fresh, history] = await Promise.all([get(path), get(`${path}/history`)]);
    if (fetched !== id) return;
    const becameReady = fresh.status === "ready" && file?.status !== "ready";
    [file, events, error] = [fresh, history.events, ""];
    if (becameReady) {
      preview = hasPreview(file) ? await link("inline").catch(() => "") : "";
      chunks = await get(`${path}/chunks?limit=3`).then((answer) => answer.chunks, () => null);
    }
  } catch (failed) {
    if (fetched !== id || isDeleted) return;
    error = failed.status === 404 ? "This file does not exist, or you have no access to it." : failed.message;
    file = failed.status === 404 || failed.status === 410 ? null : file;
  }
  emitChange();
}

/** Fetches the file soon, but at most once in REFETCH_MS_MIN. */
const fetchSoon = () => (timer ||= setTimeout(fetchFile, Math.max(0, fetchedAt + REFETCH_MS_MIN - Date.now())));

const hasPreview = ({ contentType, size }) => size <= PREVIEW_BYTES_MAX && PREVIEW_TYPES.includes((contentType ?? "").split(";")[0].trim().toLowerCase());

/** A URL of the file that needs no token. */
const link = async (disposition) => (await get(`/api/v2/files/${encodeURIComponent(id)}/download?redirect=false&disposition=${disposition}`)).url;

async function download() {
  try {
    const url = await link("attachment");
    h("a", { href: url, download: file.fileName }).click();
    toast("ok", `The download of “${file.fileName}” has started.`);
  } catch (failed) {
    toast("bad", `Cannot download “${file.fileName}”.`, failed.message);
  }
}

const property = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** The stage that failed: that of the dead letter, else the one that the history left for `failed`. */
function failedStage() {
  const letter = live.deadLetters?.jobs.find((job) => job.fileId === id);
  return letter?.stage ?? stageOfStatus(events?.findLast((event) => event.to === "failed")?.from);
}

function failure() {
  const stage = failedStage();
  return `${stage ? `The stage ${stage} failed` : "Processing failed"}: ${sentence(file.error)}`;
}

/** Says why there is no text. The history knows whether the type has none, or only this file. */
function withoutText() {
  if (file.status !== "ready") return "The text is shown when the file is ready.";
  if (file.textStatus === "none") {
    const isBlank = events?.some((event) => event.reason.includes("the file has no text"));
    return `Stored. This ${isBlank ? "file" : "type"} has no text to search.`;
  }
  return file.stages?.includes("extract") ? "This file has no passages." : "Stored. Its text was not extracted, because the stage extract was not chosen for it.";
}

function meaning() {
  if (file.status === "ready" && file.textStatus === "none") return `${withoutText()} The file can be downloaded.`;
  // The reason follows.
  return file.status === "failed" && file.error ? "" : statusMeaning(file.status);
}

function properties() {
  return h("dl", { class: "properties" },
    property("Size", `${bytes(file.size)} (${number(file.size)} bytes)`),
    property("Type", file.contentType ?? "unknown"),
    property("Registered", time(file.createdAt)),
    property("Confirmed", time(file.confirmedAt, "not yet")),
    property("Ready", time(file.readyAt, "not yet")),
    file.deletionDate && property("Will be deleted", h("span", { id: "deletion-date" }, time(file.deletionDate), ", after a warning")),
    file.stages && property("Stages", file.stages.length ? file.stages.join(", ") : "none"),
    property("Recoveries", number(file.retryCount)),
    property("Id", h("code", {}, file.fileId)),
    file.batchId && property("Batch", h("code", {}, file.batchId)),
    file.checksumSha256 && property("SHA-256", h("code", {}, file.checksumSha256)),
    file.metadata && property("Metadata", h("code", {}, JSON.stringify(file.metadata))));
}

function timeline() {
  if (!events) return loading();
  const start = events.length ? Date.parse(events[0].at) : 0;
  return h("ol", { class: "timeline" }, events.map((event, at) => {
    const before = at ? Date.parse(events[at - 1].at) : start;
    const isNewDay = at === 0 || day(event.at) !== day(events[at - 1].at);
    return h("li", { class: kindOfStatus(event.to), "data-key": `${at}-${event.at}`, "data-to": event.to },
      h("div", { class: "event-time" }, isNewDay && h("span", {}, day(event.at)),
        h("time", { datetime: event.at, title: absolute(event.at) }, exactTime(event.at)),
        at ? h("span", { class: "muted" }, `+${duration(Date.parse(event.at) - before)}`) : null),
      h("span", { class: "marker" }),
      h("div", { class: "event-text" }, badge(event.to), h("p", {}, event.reason), h("p", { class: "muted" }, `by ${event.actor}`)));
  }));
}

function actions() {
  const letter = live.deadLetters?.jobs.find((job) => job.fileId === id);
  const stuck = live.stuck?.files.find((other) => other.id === id);
  const canRetry = !isFinal(file.status) && file.status !== "registered";
  return h("div", { class: "buttons" },
    letter && processAgain(letter, "primary"),
    canRetry && retryStuck(stuck ?? { id, fileName: file.fileName, status: file.status }, stuck?.problem ? "primary" : ""),
    file.status === "quarantined" && isOperator() && releaseFile(file, fetchSoon),
    ["ready", "failed"].includes(file.status) && h("button", { type: "button", onclick: download }, "Download"),
    deleteFile(file, () => {
      isDeleted = true;
      location.hash = "#/files";
    }, "danger-quiet"));
}

onNotification((notification) => notification.fileId === id && fetchSoon());

export const filePage = {
  title: "File",
  enter(wanted) {
    [id, file, events, chunks, error, isDeleted, preview] = [wanted, null, null, null, "", false, ""];
    fetchFile();
  },
  leave: () => (id = ""),
  render() {
    if (live.dashboard !== lastDashboard) {
      lastDashboard = live.dashboard;
      if (id && !isDeleted) fetchSoon();
    }
    const back = h("p", { class: "back" }, h("a", { href: "#/files" }, "← All files"));
    if (error && !file) return [back, h("h1", {}, "File"), h("p", { class: "error", role: "alert" }, error)];
    if (!file) return [back, h("h1", {}, "File"), loading()];
    return [
      back,
      h("div", { class: "file-head", "data-key": "head" }, h("h1", { class: "name" }, file.fileName), h("span", { id: "status" }, badge(file.status)), actions()),
      meaning() && h("p", { class: "hint" }, meaning()),
      file.error && h("p", { class: "file-error" }, icon("warn"), file.status === "failed" ? failure() : file.error),
      h("div", { class: "columns", "data-key": "columns" },
        section("timeline", "History", timeline()),
        h("div", { class: "stack" },
          preview && section("preview", "Preview", h("img", { class: "preview", src: preview, alt: `Preview of ${file.fileName}` })),
          section("properties", "Properties", properties()),
          section("text", "Text", chunks?.length ? h("ol", { class: "hits" }, chunks.map((chunk) => h("li", { "data-key": `c${chunk.ordinal}` }, h("p", {}, chunk.text))))
            : placeholder(withoutText()), { hint: chunks?.length ? "The first passages that the search uses." : "" }))),
    ];
  },
};
