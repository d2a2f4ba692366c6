// The page before a search: values that many pictures share, above the list of all pictures.

import { element } from "./elements.js";
import { namedValue, queryLink, valueText } from "./facets.js";
import { emptyQuery } from "./query.js";

const MAX_VALUES = 8;

/** The most frequent values of the first text column in the facets; null if there is none. */
export function welcome(facets) {
  const isText = ([, { values: [first] }]) => typeof first?.value === "string";
  const texts = Object.entries(facets?.columns ?? {}).find(isText);
  if (!texts) return null;
  const [column, { values: all }] = texts;
  const links = all.slice(0, MAX_VALUES).map(({ value }) => {
    const query = { ...emptyQuery(), filter: { [column]: value } };
    return element("li", {}, queryLink(query, { class: "word", title: `${column}: ${valueText(value)}` }, namedValue(column, value)));
  });
  return element("ul", { class: "words", role: "list", ariaLabel: `Pictures by ${column}` }, ...links);
}
