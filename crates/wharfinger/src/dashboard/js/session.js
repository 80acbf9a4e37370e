// Who is signed in: a token from the address or the form, kept for this tab's session alone.

const KEY = "wharfinger.token";

let session = null;
let whyOut = "";

/** Whom a token is for, as far as it says itself; throws where it says nothing. Whether it is over is the server's to say:
 *  the clock of a phone may say anything. */
export function read(given) {
  const token = given.trim().replace(/^Bearer\s+/i, "");
  const parts = token.split(".");
  if (parts.length !== 3) throw new Error("A token has three parts with dots between them; this is not one.");
  let claims;
  try {
    const base64 = parts[1].replaceAll("-", "+").replaceAll("_", "/");
    const raw = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    claims = JSON.parse(new TextDecoder().decode(raw));
  } catch {
    throw new Error("This token cannot be read. Copy it whole.");
  }
  const { sub, tenant, role = "user", exp } = claims;
  if (!sub || !tenant || !exp) throw new Error("This token does not say who it is for.");
  if (role === "worker") throw new Error("This token is for workers: this page is for people.");
  return { token, user: sub, tenant, role, expiresAt: exp * 1000 };
}

/** Where a browser keeps nothing for pages, the session ends with the page. */
function stored(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

export const current = () => session;
export const reasonSignedOut = () => whyOut;
export const isOperator = () => session?.role === "operator";
export const isKeeper = () => isOperator() || session?.role === "admin";

export function signIn(token) {
  session = read(token);
  whyOut = "";
  stored((storage) => storage.setItem(KEY, session.token));
}

export function signOut(why = "") {
  session = null;
  whyOut = why;
  stored((storage) => storage.removeItem(KEY));
}

/** Takes the token out of the address at once: addresses are shown, copied and kept. */
export function fromAddress() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", `${location.pathname}#/`);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1];
  }
}

/** From before a reload. */
export function resume() {
  const token = stored((storage) => storage.getItem(KEY));
  if (!token) return false;
  try {
    signIn(token);
    return true;
  } catch (error) {
    signOut(error.message);
    return false;
  }
}
