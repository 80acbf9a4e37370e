// The signed-in user. The token comes from the URL or the sign-in form, and is stored for this browser tab only.

const KEY = "wharfinger.token";

let session = null;
let reason = "";

/** The token in a text that a person gave; throws if it is none. The server reads its claims: they can have any name, and a
 *  service key has none. */
export function readToken(given) {
  const token = given.trim().replace(/^Bearer\s+/i, "");
  if (!token.startsWith("whf_") && token.split(".").length !== 3) throw new Error("This is not a token: a token has three parts with dots between them, or begins with whf_.");
  return token;
}

/** A browser may forbid storage: the session then ends with the page. */
function withStorage(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

export const current = () => session;
export const signOutReason = () => reason;
export const isOperator = () => session?.role === "operator";
/** An operator may do what an admin may. */
export const isAdmin = () => isOperator() || session?.role === "admin";

/** `caller`: { token, tenant, user, role, expiresAt } as `identify` returns it. */
export function signIn(caller) {
  session = caller;
  reason = "";
  withStorage((storage) => storage.setItem(KEY, JSON.stringify(caller)));
}

export function signOut(why = "") {
  session = null;
  reason = why;
  withStorage((storage) => storage.removeItem(KEY));
}

/** Removes the token from the URL at once, because URLs are shown, copied and stored in the history. */
export function takeTokenFromUrl() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", `${location.pathname}#/`);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

/** Signs in again after a reload of the page. */
export function restoreSession() {
  const stored = withStorage((storage) => storage.getItem(KEY));
  if (!stored) return false;
  try {
    const caller = JSON.parse(stored);
    // JSON has no Infinity: a key that does not expire is stored with null.
    signIn({ ...caller, expiresAt: caller.expiresAt ?? Infinity });
    return true;
  } catch {
    signOut();
    return false;
  }
}
