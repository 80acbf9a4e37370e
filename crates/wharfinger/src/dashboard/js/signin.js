// The sign-in page.

import { identify } from "./api.js";
import { h } from "./dom.js";
import { brandMark } from "./icons.js";
import { current, signOutReason, signIn, signOut } from "./session.js";

export function signInPage(done) {
  const error = h("p", { class: "error", id: "sign-in-error", role: "alert" }, signOutReason());
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    try {
      const caller = await identify(field.value);
      // A link may have signed in another user meanwhile.
      if (current()) return;
      signIn(caller);
      done();
    } catch (problem) {
      if (current()) return;
      // The form may be drawn again at any time: the message is stored and shown in the form of now.
      signOut(problem.message);
      document.getElementById("sign-in-error").textContent = problem.message;
      field.setAttribute("aria-invalid", "true");
      field.focus();
    }
  };
  return h("main", { class: "sign-in", id: "main", "data-key": "sign-in", tabindex: "-1" },
    h("form", { class: "card", onsubmit: submit },
      h("div", { class: "brand" }, brandMark(40), h("h1", {}, "Wharfinger")),
      h("p", { class: "hint" }, "Uploads with quotas: each file is confirmed, processed and searchable, or it is removed."),
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, autofocus: true, "aria-describedby": "sign-in-error sign-in-hint" }),
      error,
      h("button", { type: "submit", class: "primary" }, "Sign in"),
      h("p", { class: "muted", id: "sign-in-hint" }, "A token of your issuer, of ", h("code", {}, "wharfinger token"), ", or a service key. When the server starts on a terminal, it prints a link with a token. The token is stored in this tab only.")));
}
