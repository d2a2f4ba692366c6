// The page before a search: example pictures of the collection, and values that many of them share.

import * as api from "./api.js";
import { element } from "./elements.js";
import { namedValue, queryLink } from "./facets.js";
import { emptyQuery } from "./query.js";
import { grid } from "./results.js";

const MAX_PICTURES = 12;
const MAX_VALUES = 8;
let examples = null; // a promise; the pictures stay the same until the page is reloaded

/** Fill `root` with examples; `dim` is the length of the model's vectors, `maxK` the server's largest k. */
export async function welcome(root, { dim, maxK }, tools, signal) {
  examples ??= api.examples(dim, Math.min(MAX_PICTURES, maxK));
  const matches = await examples.catch((error) => {
    examples = null;
    throw error;
  });
  if (signal.aborted) return;
  if (!matches.length) {
    root.replaceChildren(element("p", { class: "nothing" }, "This collection has no pictures yet."));
    return;
  }
  const pictures = grid(matches.map(({ duplicates, ...match }) => match), emptyQuery(), tools);
  root.replaceChildren(element("h2", {}, "Start with one of these"), ...values(tools.facets), pictures);
}

/** The most frequent values of the first text column in the facets. */
function values(facets) {
  const isText = ([, { values: [first] }]) => typeof first?.value === "string";
  const texts = Object.entries(facets?.columns ?? {}).find(isText);
  if (!texts) return [];
  const [column, { values: all }] = texts;
  const links = all.slice(0, MAX_VALUES).map(({ value }) => {
    const query = { ...emptyQuery(), filter: { [column]: value } };
    return element("li", {}, queryLink(query, { class: "word", title: `${column}: ${value}` }, namedValue(column, value)));
  });
  return [element("ul", { class: "words", role: "list", ariaLabel: `Pictures by ${column}` }, ...links)];
}
