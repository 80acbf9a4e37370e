// One file: what it is, where it stands, and how it came there.

import { get, request } from "./api.js";
import { h } from "./dom.js";
import { badge, icon } from "./icons.js";
import { live, onNotice, tell } from "./live.js";
import { deleteFile, redrive, retryStuck } from "./mending.js";
import { loading, nothing, section } from "./tables.js";
import { toast } from "./toasts.js";
import { absolute, bytes, day, duration, exactTime, isEnd, kindOf, meaningOf, number, time } from "./words.js";

const LOOK_MS_MIN = 800;

let id = "";
let file = null;
let events = null;
let chunks = null;
let error = "";
let seen = null;
let timer = 0;
let lookedAt = 0;
let isGone = false;

async function look() {
  timer = 0;
  lookedAt = Date.now();
  const asked = id;
  // One has gone elsewhere meanwhile, or the file has.
  if (!asked || isGone) return;
  const path = `/api/v2/files/${encodeURIComponent(asked)}`;
  try {
    const [fresh, history] = await Promise.all([get(path), get(`${path}/history`)]);
    if (asked !== id) return;
    const becameReady = fresh.status === "ready" && file?.status !== "ready";
    [file, events, error] = [fresh, history.events, ""];
    if (becameReady) chunks = await get(`${path}/chunks?limit=3`).then((answer) => answer.chunks, () => null);
  } catch (failed) {
    if (asked !== id || isGone) return;
    error = failed.status === 404 ? "There is no such file, or it is not yours to see." : failed.message;
    file = failed.status === 404 || failed.status === 410 ? null : file;
  }
  tell();
}

const lookSoon = () => (timer ||= setTimeout(look, Math.max(0, lookedAt + LOOK_MS_MIN - Date.now())));

/** The redirect's target, which needs no token, is opened as any download is. */
async function download() {
  const stop = new AbortController();
  try {
    const response = await request("GET", `/api/v2/files/${encodeURIComponent(id)}/download`, { signal: stop.signal });
    const { url } = response;
    stop.abort();
    h("a", { href: url, download: file.fileName }).click();
    toast("ok", `“${file.fileName}” is being downloaded.`);
  } catch (failed) {
    toast("bad", "The download did not begin.", failed.message);
  }
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

function facts() {
  return h("dl", { class: "facts" },
    fact("Size", `${bytes(file.size)} (${number(file.size)} bytes)`),
    fact("Type", file.contentType ?? "not given"),
    fact("Announced", time(file.createdAt)),
    fact("Confirmed", time(file.confirmedAt, "not yet")),
    fact("Ready", time(file.readyAt, "not yet")),
    fact("Begun anew", `${number(file.retryCount)} ×`),
    fact("Id", h("code", {}, file.fileId)),
    file.batchId && fact("Batch", h("code", {}, file.batchId)),
    file.checksumSha256 && fact("SHA-256", h("code", {}, file.checksumSha256)),
    file.metadata && fact("Metadata", h("code", {}, JSON.stringify(file.metadata))));
}

function timeline() {
  if (!events) return loading();
  const start = events.length ? Date.parse(events[0].at) : 0;
  return h("ol", { class: "timeline" }, events.map((event, at) => {
    const before = at ? Date.parse(events[at - 1].at) : start;
    const isNewDay = at === 0 || day(event.at) !== day(events[at - 1].at);
    return h("li", { class: kindOf(event.to), "data-key": `${at}-${event.at}`, "data-to": event.to },
      h("div", { class: "when" }, isNewDay && h("span", {}, day(event.at)),
        h("time", { datetime: event.at, title: absolute(event.at) }, exactTime(event.at)),
        at ? h("span", { class: "muted" }, `+${duration(Date.parse(event.at) - before)}`) : null),
      h("span", { class: "knot" }),
      h("div", { class: "what" }, badge(event.to), h("p", {}, event.reason), h("p", { class: "muted" }, `by ${event.actor}`)));
  }));
}

function actions() {
  const letter = live.letters?.jobs.find((job) => job.fileId === id);
  const stuck = live.stuck?.files.find((other) => other.id === id);
  const canRetry = !isEnd(file.status) && file.status !== "registered";
  return h("div", { class: "buttons" },
    letter && redrive(letter, "primary"),
    canRetry && retryStuck(stuck ?? { id, fileName: file.fileName, status: file.status }, stuck?.problem ? "primary" : ""),
    file.status === "ready" && h("button", { type: "button", onclick: download }, "Download"),
    deleteFile(file, () => {
      isGone = true;
      location.hash = "#/files";
    }, "danger-quiet"));
}

onNotice((notice) => notice.fileId === id && lookSoon());

export const filePage = {
  title: "File",
  enter(wanted) {
    [id, file, events, chunks, error, isGone] = [wanted, null, null, null, "", false];
    look();
  },
  leave: () => (id = ""),
  render() {
    if (live.dashboard !== seen) {
      seen = live.dashboard;
      if (id && !isGone) lookSoon();
    }
    const back = h("p", { class: "back" }, h("a", { href: "#/files" }, "← All files"));
    if (error && !file) return [back, h("h1", {}, "File"), h("p", { class: "wrong", role: "alert" }, error)];
    if (!file) return [back, h("h1", {}, "File"), loading()];
    return [
      back,
      h("div", { class: "file-head", "data-key": "head" }, h("h1", { class: "name" }, file.fileName), h("span", { id: "status" }, badge(file.status)), actions()),
      h("p", { class: "hint" }, meaningOf(file.status)),
      file.error && h("p", { class: "file-error" }, icon("warn"), file.error),
      h("div", { class: "columns", "data-key": "columns" },
        section("timeline", "History", timeline()),
        h("div", { class: "stack" },
          section("facts", "Facts", facts()),
          section("text", "Its text", chunks?.length ? h("ol", { class: "hits" }, chunks.map((chunk) => h("li", { "data-key": `c${chunk.ordinal}` }, h("p", {}, chunk.text))))
            : nothing(file.status === "ready" ? "It has no text." : "Read when it has been through its stages."), { hint: chunks?.length ? "The first passages, as the search sees them." : "" }))),
    ];
  },
};
