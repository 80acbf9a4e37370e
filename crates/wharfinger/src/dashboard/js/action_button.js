// The confirmation dialog and the action button: a dialog says what will happen, the button shows that the call is running,
// a message shows the result.

import { h } from "./dom.js";
import { emitChange } from "./live.js";
import { toast } from "./toasts.js";

const running = new Set();

/** Shows a dialog. Returns the text of its field (true without a field), or null if it was cancelled. */
export function confirm({ title, text, confirmLabel, cancelLabel = "Cancel", isDanger = false, field = null }) {
  return new Promise((resolve) => {
    const input = field && h("input", { id: "dialog-field", name: "field", value: field.value, required: true, autocomplete: "off", "aria-describedby": "dialog-error" });
    const error = h("p", { id: "dialog-error", class: "error", role: "alert" });
    let answer = null;
    const submit = (event) => {
      event.preventDefault();
      const problem = field?.check?.(input.value);
      if (problem) {
        error.textContent = problem;
        input.setAttribute("aria-invalid", "true");
        input.focus();
        return;
      }
      answer = field ? input.value : true;
      dialog.close();
    };
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-text" },
      h("form", { method: "dialog", onsubmit: submit },
        h("h2", { id: "dialog-title" }, title),
        h("div", { id: "dialog-text" }, text.map((line) => h("p", {}, line))),
        field && h("label", { for: "dialog-field" }, field.label),
        input,
        field && error,
        h("div", { class: "buttons" },
          h("button", { type: "button", onclick: () => dialog.close() }, cancelLabel),
          h("button", { type: "submit", class: isDanger ? "danger" : "primary", autofocus: !isDanger && !field }, confirmLabel))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (input) input.select();
  });
}

/** A button that opens `dialog` and then calls `run`, which returns the message to show. Errors of `run` are shown too. */
export function actionButton({ key, label, describe, kind = "", dialog, run }) {
  const isBusy = running.has(key);
  const start = async () => {
    if (running.has(key)) return;
    const answer = await confirm(dialog);
    if (answer === null || running.has(key)) return;
    running.add(key);
    emitChange();
    try {
      const outcome = await run(answer);
      toast(outcome.isBad ? "bad" : "ok", outcome.text, outcome.detail);
    } catch (error) {
      toast("bad", `Request failed: ${describe}`, error.message);
    } finally {
      running.delete(key);
      emitChange();
    }
  };
  return h("button", {
    type: "button", class: kind, "data-action": key, "data-key": `do-${key}`, onclick: start, "aria-label": isBusy ? `Working… ${describe}` : describe,
    "aria-busy": isBusy ? "true" : null, "aria-disabled": isBusy ? "true" : null,
  }, isBusy ? [h("span", { class: "spinner", "aria-hidden": "true" }), "Working…"] : label);
}
