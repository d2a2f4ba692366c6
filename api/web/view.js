// How matches are displayed: their order and the size of their tiles. Neither changes the search.

import { COMMON_COLUMNS, filterable } from "./conditions.js";
import { byId, element, titleOf } from "./elements.js";

const MAX_FIELDS = 1000; // the server's limit
const SIZE = "likeness-size";
const compare = new Intl.Collator("en", { numeric: true }).compare;

/** Set up the controls; `onChange` displays the matches again. */
export function watchView(onChange) {
  const size = byId("size");
  const apply = () => (byId("pictures").dataset.size = size.value);
  size.value = localStorage.getItem(SIZE) ?? "medium";
  apply();
  size.addEventListener("change", () => {
    localStorage.setItem(SIZE, size.value);
    apply();
  });
  byId("sort").addEventListener("change", onChange);
}

/** The columns to fetch with each match: the source's, and the file's modification time. */
export const matchFields = (columns) =>
  [...Object.keys(columns).filter((name) => !COMMON_COLUMNS.includes(name)), "modified"].slice(-MAX_FIELDS);

/** Offer to sort by the source's columns that hold numbers or times. */
export function offerColumns(columns) {
  const own = filterable(columns).filter(([name]) => !COMMON_COLUMNS.includes(name));
  const ordered = own.filter(([, kind]) => ["number", "time"].includes(kind));
  byId("sort").append(...ordered.map(([name]) => element("option", { value: `column ${name}` }, name)));
}

/** The matches in the chosen order; pictures without a value come last. */
export function sortMatches(matches) {
  const order = byId("sort").value;
  if (order === "score") return matches;
  if (order === "name") return matches.toSorted((one, other) => compare(titleOf(one), titleOf(other)));
  const name = order === "newest" ? "modified" : order.replace("column ", "");
  const sign = order === "newest" ? -1 : 1;
  const hasValue = ({ metadata }) => metadata[name] != null;
  const ordered = matches.filter(hasValue).toSorted(({ metadata: one }, { metadata: other }) =>
    sign * (one[name] < other[name] ? -1 : Number(one[name] > other[name])));
  return [...ordered, ...matches.filter((match) => !hasValue(match))];
}
