// Shows the server's error messages, and asks for a key.

import * as api from "./api.js";
import { byId, element } from "./elements.js";

const NOT_VALID = "This key is not valid: it is mistyped, was removed, or is for another server.";

/** Set up the form for a key; `onKey` is called once one is entered. */
export function watchKey(onKey) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    byId("key").value = "";
    if (!/^[!-~]+$/.test(key)) { // other characters are not allowed in a header
      askForKey(NOT_VALID);
      return;
    }
    api.setKey(key);
    onKey();
  });
}

/** Show an error instead of matches. */
export function showProblem(error) {
  const losesFocus = byId("answer").contains(document.activeElement) || document.activeElement === document.body;
  byId("status").textContent = "";
  byId("tools").hidden = true;
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("pictures").replaceChildren();
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  if (error.status === 401) {
    askForKey();
    api.removeKey();
    return;
  }
  const title = element("h2", { tabIndex: -1 }, error.title ?? "Something went wrong");
  const actions = error.actions?.length ? element("p", { class: "actions" }, ...error.actions) : null;
  byId("problem").replaceChildren(element("div", { class: "notice" }, title, element("p", {}, error.message), actions));
  if (losesFocus) title.focus();
}

/** Show an error in `status`, beside matches that stay, or ask for a key. */
export function showBeside(error, status) {
  const needsKey = error.status === 401;
  status.textContent = needsKey ? "" : error.message;
  if (needsKey) askForKey();
  else status.scrollIntoView({ block: "nearest" });
}

function askForKey(why = api.hasKey() ? NOT_VALID : "Ask the operator of this server for one.") {
  byId("key-why").textContent = why;
  byId("key-form").hidden = false;
  byId("key").focus();
}
