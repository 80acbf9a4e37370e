// Reads the server's event stream and reconnects when it breaks. It uses fetch because EventSource cannot send a token.

import { expire, request, now } from "./api.js";
import { current } from "./session.js";

const SILENCE_MS_MAX = 45_000;
const PAUSE_MS_MAX = 30_000;
/** The server sends the first event at once. If it does not arrive, a proxy may hold the stream back. */
const FIRST_EVENT_MS = 3_000;

/** Returns a function that takes pieces of the stream and calls `onEvent(name, data)` for each complete event. */
function parser(onEvent) {
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
      if (data.length) onEvent(name, JSON.parse(data.join("\n")));
    }
  };
}

/** Listens until the returned function is called. `onEvent(name, data)` gets each event. `onState` gets "connecting",
 *  "live" (an event has arrived) or "disconnected". `onSilence` is called if no event arrives soon after connecting. */
export function listen(path, { onEvent, onState, onSilence }) {
  let isClosed = false;
  let controller = null;
  let pauseMs = 1_000;
  let wake = () => {};
  const pause = (ms) => new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => (clearTimeout(timer), resolve());
  });

  async function readOnce() {
    controller = new AbortController();
    let silence = setTimeout(() => controller.abort(), SILENCE_MS_MAX);
    let isLive = false;
    const firstEvent = setTimeout(onSilence, FIRST_EVENT_MS);
    try {
      const response = await request("GET", path, { signal: controller.signal, headers: { accept: "text/event-stream" } });
      const parse = parser((name, data) => {
        if (isClosed) return;
        pauseMs = 1_000;
        clearTimeout(firstEvent);
        if (!isLive) onState("live");
        isLive = true;
        onEvent(name, data);
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => controller.abort(), SILENCE_MS_MAX);
        parse(value);
      }
    } finally {
      clearTimeout(silence);
      clearTimeout(firstEvent);
    }
  }

  (async () => {
    while (!isClosed && current()) {
      try {
        onState("connecting");
        await readOnce();
      } catch {
        // The state below shows it, and the loop tries again.
      }
      if (isClosed || !current()) return;
      if (current().expiresAt <= now()) return expire("it has expired");
      onState("disconnected");
      await pause(pauseMs * (0.75 + Math.random() / 2));
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
    }
  })();

  const retryNow = () => wake();
  addEventListener("online", retryNow);
  return () => {
    isClosed = true;
    removeEventListener("online", retryNow);
    controller?.abort();
    wake();
  };
}
