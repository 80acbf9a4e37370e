// Every action in one shape: say exactly what will happen, show that it is under way, say what came of it.

import { h } from "./dom.js";
import { tell } from "./live.js";
import { toast } from "./toasts.js";

const underWay = new Set();

/** Asks in a dialog; answers what was typed (or true), or null for "no". */
export function ask({ title, says, verb, no = "Cancel", isDanger = false, field = null }) {
  return new Promise((resolve) => {
    const input = field && h("input", { id: "dialog-field", name: "field", value: field.value, required: true, autocomplete: "off", "aria-describedby": "dialog-wrong" });
    const wrong = h("p", { id: "dialog-wrong", class: "wrong", role: "alert" });
    let answer = null;
    const submit = (event) => {
      event.preventDefault();
      const complaint = field?.check?.(input.value);
      if (complaint) {
        wrong.textContent = complaint;
        input.setAttribute("aria-invalid", "true");
        input.focus();
        return;
      }
      answer = field ? input.value : true;
      dialog.close();
    };
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-says" },
      h("form", { method: "dialog", onsubmit: submit },
        h("h2", { id: "dialog-title" }, title),
        h("div", { id: "dialog-says" }, says.map((line) => h("p", {}, line))),
        field && h("label", { for: "dialog-field" }, field.label),
        input,
        field && wrong,
        h("div", { class: "buttons" },
          h("button", { type: "button", onclick: () => dialog.close() }, no),
          h("button", { type: "submit", class: isDanger ? "danger" : "primary", autofocus: !isDanger && !field }, verb))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (input) input.select();
  });
}

/** A button for an action. `run` does it and answers what to say; what it throws is said too. */
export function actionButton({ key, label, describe, kind = "", confirm, run }) {
  const isBusy = underWay.has(key);
  const start = async () => {
    if (underWay.has(key)) return;
    const answer = await ask(confirm);
    if (answer === null || underWay.has(key)) return;
    underWay.add(key);
    tell();
    try {
      const outcome = await run(answer);
      toast(outcome.isBad ? "bad" : "ok", outcome.text, outcome.detail);
    } catch (error) {
      toast("bad", `${confirm.title.replace(/\?$/, "")}: that did not work.`, error.message);
    } finally {
      underWay.delete(key);
      tell();
    }
  };
  return h("button", {
    type: "button", class: kind, "data-action": key, "data-key": `do-${key}`, onclick: start, "aria-label": isBusy ? `Working… ${describe}` : describe,
    "aria-busy": isBusy ? "true" : null, "aria-disabled": isBusy ? "true" : null,
  }, isBusy ? [h("span", { class: "spinner", "aria-hidden": "true" }), "Working…"] : label);
}
