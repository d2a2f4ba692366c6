// What there is to see before anything has been asked: pictures of the collection, and words for some of them.

import * as api from "./api.js";
import { element } from "./elements.js";
import { nothing, toAddress } from "./query.js";
import { grid } from "./results.js";

const PICTURES = 12;
const LONGEST_WORDS = 30; // what is longer is a description, and no example of what to type
let begun = null; // the same pictures whenever the page comes back to its beginning

/** Fill `root` with examples; `dim` is that of the model's vectors. */
export async function welcome(root, dim, signal) {
  begun ??= api.examples(dim, PICTURES);
  const matches = await begun.catch((error) => {
    begun = null;
    throw error;
  });
  if (signal.aborted) return;
  if (!matches.length) {
    root.replaceChildren(element("p", { class: "nothing" }, "This collection has no pictures yet."));
    return;
  }
  const pictures = matches.map(({ score, duplicates, ...match }) => match);
  root.replaceChildren(element("h2", {}, "Begin with one of these"), ...words(matches), grid(pictures, {}));
}

function words(matches) {
  const labels = matches.map(({ metadata }) => metadata.label);
  const short = labels.filter((label) => typeof label === "string" && label && label.length <= LONGEST_WORDS);
  if (!short.length) return [];
  const links = [...new Set(short)].slice(0, 8).map((label) => {
    const link = element("a", { class: "word", href: toAddress({ ...nothing(), kind: "text", value: label }) }, label);
    link.dataset.query = "";
    return element("li", {}, link);
  });
  return [element("ul", { class: "words", role: "list", ariaLabel: "Words to begin with" }, ...links)];
}
