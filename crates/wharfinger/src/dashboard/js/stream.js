// The server's events, read with fetch because EventSource cannot send a token; reconnects by itself.

import { expire, request, now } from "./api.js";
import { current } from "./session.js";

const QUIET_MS = 45_000;
const PAUSE_MS_MAX = 30_000;
/** The first event comes at once; where it does not, something between may hold the stream back. */
const FIRST_EVENT_MS = 3_000;

/** Takes text as it comes and calls `heard(name, data)` for each whole event. */
export function parser(heard) {
  let rest = "";
  return (text) => {
    rest += text;
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split(/\r?\n/)) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) heard(name, JSON.parse(data.join("\n")));
    }
  };
}

/** Listens until closed. `heard(name, data)` for events, `changed("live" | "connecting" | "away")` for the line, which
 *  is live when something has come through it; `isLate()` when nothing has for a while. */
export function listen(path, heard, changed, isLate) {
  let isClosed = false;
  let controller = null;
  let pauseMs = 1_000;
  let wake = () => {};
  const pause = (ms) => new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => (clearTimeout(timer), resolve());
  });

  async function once() {
    controller = new AbortController();
    let quiet = setTimeout(() => controller.abort(), QUIET_MS);
    let isLive = false;
    const late = setTimeout(isLate, FIRST_EVENT_MS);
    try {
      const response = await request("GET", path, { signal: controller.signal, headers: { accept: "text/event-stream" } });
      const take = parser((name, data) => {
        if (isClosed) return;
        pauseMs = 1_000;
        clearTimeout(late);
        if (!isLive) changed("live");
        isLive = true;
        heard(name, data);
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(quiet);
        quiet = setTimeout(() => controller.abort(), QUIET_MS);
        take(value);
      }
    } finally {
      clearTimeout(quiet);
      clearTimeout(late);
    }
  }

  (async () => {
    while (!isClosed && current()) {
      try {
        changed("connecting");
        await once();
      } catch {
        // The line says so; what matters is that it is tried again.
      }
      if (isClosed || !current()) return;
      if (current().expiresAt <= now()) return expire("it is over");
      changed("away");
      await pause(pauseMs * (0.75 + Math.random() / 2));
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
    }
  })();

  const hurry = () => wake();
  addEventListener("online", hurry);
  return () => {
    isClosed = true;
    removeEventListener("online", hurry);
    controller?.abort();
    wake();
  };
}
