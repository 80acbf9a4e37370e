// A list of the API that is fetched page by page. It is fetched again when something has changed, with all rows that are shown.

import { get } from "./api.js";
import { h } from "./dom.js";
import { emitChange } from "./live.js";
import { current } from "./session.js";

const PAGE = 50;
const ROWS_MAX = 1000;
const REFETCH_MS_MIN = 1_000;

/** `member`: the member of the answer that has the rows. `path()` can change: the list then starts again. */
export function pagedList(member, path) {
  const list = { rows: null, error: "" };
  let next = null;
  let isLoadingMore = false;
  let shownPath = "";
  let fetchedAt = 0;
  let timer = 0;
  let lastSeen = [];

  const page = (rows, cursor) => {
    const query = `limit=${rows}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`;
    return get(`${shownPath}${shownPath.includes("?") ? "&" : "?"}${query}`);
  };

  async function fetchRows() {
    clearTimeout(timer);
    timer = 0;
    fetchedAt = Date.now();
    const [wanted, session] = [path(), current()];
    if (wanted !== shownPath) [shownPath, list.rows, next] = [wanted, null, null];
    // The answer is dropped if another list or another user was selected during the call.
    const isStale = () => path() !== wanted || current() !== session;
    try {
      const answer = await page(Math.min(ROWS_MAX, Math.max(PAGE, list.rows?.length ?? 0)));
      if (isStale()) return;
      [list.rows, next, list.error] = [answer[member], answer.nextCursor, ""];
    } catch (failed) {
      if (isStale()) return;
      list.error = failed.message;
    }
    emitChange();
  }

  async function more() {
    isLoadingMore = true;
    emitChange();
    const before = list.rows;
    try {
      const answer = await page(PAGE, next);
      // The list may have been fetched again meanwhile: this page does not belong to the new one.
      if (list.rows === before) [list.rows, next] = [[...before, ...answer[member]], answer.nextCursor];
    } catch (failed) {
      list.error = failed.message;
    }
    isLoadingMore = false;
    emitChange();
  }

  /** Shows nothing of an earlier visit, and fetches the list now. */
  list.open = () => {
    [shownPath, list.rows, next, list.error] = ["", null, null, ""];
    fetchRows();
  };
  /** Fetches the list again if one of these values is another one than before, but at most once in REFETCH_MS_MIN. */
  list.refetchAfter = (...seen) => {
    const isChanged = path() !== shownPath || seen.some((value, at) => value !== lastSeen[at]);
    lastSeen = seen;
    if (isChanged) timer ||= setTimeout(fetchRows, Math.max(0, fetchedAt + REFETCH_MS_MIN - Date.now()));
  };
  list.moreButton = () => next && h("button", { type: "button", class: "more", onclick: more, "aria-busy": isLoadingMore ? "true" : null }, isLoadingMore ? "Loading…" : "Show more");
  return list;
}
