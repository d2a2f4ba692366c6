// Marks pictures that the next search should be like or unlike.

import { showPicture } from "./api.js";
import { byId, element, plural } from "./elements.js";
import { queryLink } from "./facets.js";

const THUMBNAIL = 96; // pixels a side
const SIGNS = { like: "+", unlike: "−" };
const LABELS = { like: "More like", unlike: "Less like" };

/** The pictures marked on the page, until they are cleared. `onSearch` and `onSave` get {like, unlike}: lists of ids. */
export class Marks {
  #marks = new Map(); // "like" or "unlike", by id
  #bar = byId("mix");

  constructor(onSearch, onSave) {
    byId("mix-search").addEventListener("click", () => onSearch(this.#lists()));
    byId("mix-save").addEventListener("click", () => onSave(this.#lists()));
    byId("mix-clear").addEventListener("click", () => {
      this.#marks.clear();
      for (const button of document.querySelectorAll(".mark")) button.ariaPressed = "false";
      this.#update();
      byId("answer").focus({ preventScroll: true }); // the bar with the button is gone
    });
  }

  /** The two buttons that mark a picture. */
  buttons(id, name) {
    const group = element("span", { class: "marks" });
    group.append(...Object.keys(SIGNS).map((kind) => {
      const label = `${LABELS[kind]} ${name}`;
      const button = element("button", { type: "button", value: kind, class: "mark", title: label }, SIGNS[kind]);
      button.ariaLabel = label;
      button.ariaPressed = String(this.#marks.get(id) === kind);
      button.addEventListener("click", () => {
        if (this.#marks.get(id) === kind) this.#marks.delete(id);
        else this.#marks.set(id, kind);
        const mark = this.#marks.get(id);
        for (const each of group.children) each.ariaPressed = String(each.value === mark);
        this.#update();
      });
      return button;
    }));
    return group;
  }

  #lists() {
    const idsOf = (kind) => [...this.#marks].filter(([, mark]) => mark === kind).map(([id]) => id);
    return { like: idsOf("like"), unlike: idsOf("unlike") };
  }

  #update() {
    const { like, unlike } = this.#lists();
    const counts = [like.length && `like ${plural(like.length, "picture")}`, unlike.length && `unlike ${unlike.length}`];
    byId("mix-summary").textContent = counts.filter(Boolean).join(", ");
    this.#bar.hidden = !this.#marks.size;
  }
}

/** The marks added to the pictures that a query is like and unlike already. */
export const mixed = (query, { like, unlike }) => ({
  like: [...query.like.filter((id) => ![...like, ...unlike].includes(id)), ...like],
  unlike: [...query.unlike.filter((id) => ![...like, ...unlike].includes(id)), ...unlike],
});

/** The pictures that a query is like or unlike, each with a link to the query without it; null if there are none. */
export function mixList(query) {
  const items = Object.keys(SIGNS).flatMap((kind) => query[kind].map((id) => {
    const img = element("img", { alt: "" });
    showPicture(img, `picture?id=${encodeURIComponent(id)}`, THUMBNAIL);
    const without = { ...query, [kind]: query[kind].filter((each) => each !== id) };
    const link = queryLink(without, { class: `mixed-${kind}`, title: id }, img, `${SIGNS[kind]} ×`);
    link.ariaLabel = `${LABELS[kind]} ${id}: remove`;
    return element("li", {}, link);
  }));
  return items.length ? element("ul", { class: "mixed", role: "list", ariaLabel: "Mixed with" }, ...items) : null;
}

/** Download {like, unlike} as a file for `likeness annotate --examples`. */
export function saveExamples(marks) {
  const lines = Object.keys(SIGNS).flatMap((label) => marks[label].map((id) => JSON.stringify({ image_id: id, label })));
  const href = URL.createObjectURL(new Blob(lines.map((line) => `${line}\n`)));
  element("a", { href, download: "examples.jsonl" }).click();
  URL.revokeObjectURL(href);
}
