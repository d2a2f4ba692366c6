// How the pictures found are shown: their order, and the size of their tiles. Neither changes what is asked.

import { COMMON, filterable } from "./conditions.js";
import { byId, element, fileName } from "./elements.js";

const MOST_FIELDS = 1000; // the server's limit
const SIZE = "likeness-size";
const compare = new Intl.Collator("en", { numeric: true }).compare;

/** Let the controls work: `onChange` shows the pictures anew. */
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

/** What each match comes with: the source's columns, and the time of its file. */
export const matchFields = (columns) =>
  [...Object.keys(columns).filter((name) => !COMMON.includes(name)), "modified"].slice(-MOST_FIELDS);

/** Offer the columns of the source that have an order: pictures found come with these. */
export function offerColumns(columns) {
  const own = filterable(columns).filter(([name]) => !COMMON.includes(name));
  const ordered = own.filter(([, kind]) => ["number", "time"].includes(kind));
  byId("sort").append(...ordered.map(([name]) => element("option", { value: `column ${name}` }, name)));
}

/** The matches in the chosen order; pictures without a value come last. */
export function sorted(matches) {
  const by = byId("sort").value;
  if (by === "score") return matches;
  if (by === "name") return matches.toSorted((one, other) => compare(fileName(one.image_id), fileName(other.image_id)));
  const name = by === "newest" ? "modified" : by.replace("column ", "");
  const sign = by === "newest" ? -1 : 1;
  const having = (there) => matches.filter(({ metadata }) => (metadata[name] != null) === there);
  const ordered = having(true).toSorted(({ metadata: one }, { metadata: other }) =>
    sign * (one[name] < other[name] ? -1 : Number(one[name] > other[name])));
  return [...ordered, ...having(false)];
}
