// What there is to see before anything has been asked: pictures of the collection, and values that many of them share.

import * as api from "./api.js";
import { element } from "./elements.js";
import { queryLink } from "./facets.js";
import { nothing } from "./query.js";
import { grid } from "./results.js";

const PICTURES = 12;
const VALUES = 8;
let begun = null; // the same pictures whenever the page comes back to its beginning

/** Fill `root` with examples; `dim` is that of the model's vectors. */
export async function welcome(root, dim, tools, signal) {
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
  const pictures = grid(matches.map(({ duplicates, ...match }) => match), nothing(), tools);
  root.replaceChildren(element("h2", {}, "Begin with one of these"), ...values(tools.facets), pictures);
}

/** The most frequent values of the first column of texts that images share. */
function values(facets) {
  const isText = ([, { values: [first] }]) => typeof first?.value === "string";
  const texts = Object.entries(facets?.columns ?? {}).find(isText);
  if (!texts) return [];
  const [column, { values: all }] = texts;
  const links = all.slice(0, VALUES).map(({ value }) => {
    const query = { ...nothing(), filter: { [column]: value } };
    return element("li", {}, queryLink(query, { class: "word", title: `${column}: ${value}` }, value));
  });
  return [element("ul", { class: "words", role: "list", ariaLabel: `Pictures by ${column}` }, ...links)];
}
