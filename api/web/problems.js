// What went wrong, in the server's words, and the question for a key.

import * as api from "./api.js";
import { byId, element } from "./elements.js";

const NOT_VALID = "This key is not valid: mistyped, removed, or of another server.";

/** Let the form for a key work: `onKey` is called when there is one. */
export function watchKey(onKey) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = byId("key").value.trim();
    byId("key").value = "";
    if (!/^[!-~]+$/.test(key)) { // no header can hold it
      askForKey(NOT_VALID);
      return;
    }
    api.setKey(key);
    onKey();
  });
}

/** Show an error in place of an answer. */
export function fail(error) {
  byId("status").textContent = "";
  byId("pictures").replaceChildren();
  byId("more").hidden = true;
  byId("more-status").textContent = "";
  if (error.status === 401) {
    askForKey(api.hasKey() ? NOT_VALID : "Whoever runs it can give you one.");
    api.dropKey();
    return;
  }
  const title = element("h2", { tabIndex: -1 }, error.title ?? "Something went wrong");
  const lost = byId("answer").contains(document.activeElement) || document.activeElement === document.body;
  byId("subject").replaceChildren();
  byId("answer").classList.remove("beside");
  byId("problem").replaceChildren(element("div", { class: "notice" }, title, element("p", {}, error.message)));
  if (lost) title.focus();
}

function askForKey(why) {
  byId("key-why").textContent = why;
  byId("key-form").hidden = false;
  byId("key").focus();
}
