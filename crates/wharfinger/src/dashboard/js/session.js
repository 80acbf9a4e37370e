// The signed-in user. The token comes from the URL or the sign-in form, and is stored for this browser tab only.

const KEY = "wharfinger.token";

let session = null;
let reason = "";

/** Reads the claims of a token; throws if it has none. The server checks the expiry: the clock of this device may be
 *  wrong. */
export function parseToken(given) {
  const token = given.trim().replace(/^Bearer\s+/i, "");
  const parts = token.split(".");
  if (parts.length !== 3) throw new Error("This is not a token: a token has three parts with dots between them.");
  let claims;
  try {
    const base64 = parts[1].replaceAll("-", "+").replaceAll("_", "/");
    const raw = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    claims = JSON.parse(new TextDecoder().decode(raw));
  } catch {
    throw new Error("The token cannot be read. Copy all of it and try again.");
  }
  const { sub, tenant, role = "user", exp } = claims;
  if (!sub || !tenant || !exp) throw new Error("The token has no sub, tenant or exp claim. Use a token of this server.");
  if (role === "worker") throw new Error("This token is for a worker. Use a token with the role user, admin or operator.");
  return { token, user: sub, tenant, role, expiresAt: exp * 1000 };
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

export function signIn(token) {
  session = parseToken(token);
  reason = "";
  withStorage((storage) => storage.setItem(KEY, session.token));
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
  const token = withStorage((storage) => storage.getItem(KEY));
  if (!token) return false;
  try {
    signIn(token);
    return true;
  } catch (error) {
    signOut(error.message);
    return false;
  }
}
