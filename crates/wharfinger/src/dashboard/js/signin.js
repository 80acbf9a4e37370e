// The way in: a token, and what this place is.

import { h } from "./dom.js";
import { brandMark } from "./icons.js";
import { reasonSignedOut, signIn, signOut } from "./session.js";

export function signInPage(done) {
  const wrong = h("p", { class: "wrong", id: "sign-in-wrong", role: "alert" }, reasonSignedOut());
  const submit = (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    try {
      signIn(field.value);
      done();
    } catch (error) {
      // The form may have been drawn again meanwhile, and will be: what is wrong is kept, and told where it stands now.
      signOut(error.message);
      document.getElementById("sign-in-wrong").textContent = error.message;
      field.setAttribute("aria-invalid", "true");
      field.focus();
    }
  };
  return h("main", { class: "sign-in", id: "main", "data-key": "sign-in", tabindex: "-1" },
    h("form", { class: "card", onsubmit: submit },
      h("div", { class: "brand" }, brandMark(40), h("h1", {}, "Wharfinger")),
      h("p", { class: "hint" }, "Answers for every uploaded byte: quota-guarded uploads that are confirmed, processed and searchable, or cleaned up."),
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, autofocus: true, "aria-describedby": "sign-in-wrong sign-in-hint" }),
      wrong,
      h("button", { type: "submit", class: "primary" }, "Sign in"),
      h("p", { class: "muted", id: "sign-in-hint" }, "The server prints an address with a token when it starts; ", h("code", {}, "wharfinger token"), " makes others. It is kept in this tab only.")));
}
