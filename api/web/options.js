// The options of a search: in the form fold duplicates, minimum score, only what fits the words, words or their meaning, diversity; above the
// pictures their order, their groups and their size.

import { groupable, sortable } from "./conditions.js";
import { byId, element, offer } from "./elements.js";
import { isForWords, isRanked } from "./query.js";

const [distinct, minScore, fitting, diversity, sort, groupBy, words] =
  ["distinct", "min-score", "fitting", "diversity", "sort", "group-by", "words"].map(byId);
const OF_VECTORS = [distinct, minScore, fitting, diversity]; // a search for words alone takes none

const SIZE = "likeness-size";
const DIRECTIONS = {
  text: ["a to z", "z to a"],
  boolean: ["no first", "yes first"],
  time: ["oldest first", "newest first"],
  clock: ["earliest first", "latest first"],
  seconds: ["shortest first", "longest first"],
  number: ["lowest first", "highest first"],
  decimal: ["lowest first", "highest first"],
};

/** Offer to sort and group by the columns of `types`, which are Arrow's, by column. */
export function offerColumns(types) {
  const option = (value, text) => element("option", { value }, text);
  offer(sort, sortable(types).flatMap(([name, kind]) =>
    DIRECTIONS[kind].map((direction, descending) => option((descending ? "-" : "") + name, `${name}, ${direction}`))), 2);
  offer(groupBy, groupable(types).map(([name]) => option(name, name)), 1);
}

/** Show the options of a query. */
export function fillOptions(query) {
  distinct.checked = query.distinct !== false;
  minScore.value = query.minScore ?? "";
  fitting.checked = query.fitting !== false;
  words.value = query.words;
  diversity.value = Number(query.diversity) || 0;
  const [byDefault, byScore] = sort.options;
  byDefault.text = isRanked(query) ? "best first" : "by id";
  byScore.disabled = !isRanked(query);
  sort.value = query.sort;
  groupBy.value = query.groupBy;
  for (const input of OF_VECTORS) input.disabled = isForWords(query);
}

/** The options in the form; `query` is the one that they were filled in from. */
export function readOptions(query) {
  return {
    distinct: isOn(distinct, query.distinct),
    minScore: minScore.value === "" ? null : minScore.valueAsNumber,
    fitting: isOn(fitting, query.fitting),
    words: words.value,
    diversity: diversity.valueAsNumber || null,
    sort: sort.value,
    groupBy: groupBy.value,
  };
}

/** Whether a box is checked; as long as it is, the value that it stood for before. */
const isOn = (input, before) => input.checked && (before === false || before);

/** Set up the size of the tiles, which this browser remembers. */
export function watchSize() {
  const size = byId("size");
  const apply = () => (byId("pictures").dataset.size = size.value);
  size.value = localStorage.getItem(SIZE) ?? "medium";
  apply();
  size.addEventListener("change", () => {
    localStorage.setItem(SIZE, size.value);
    apply();
  });
}

/** `onChange` is called after a change. Of options that exclude each other, the server accepts one: the last choice. */
export function watchOptions(onChange) {
  for (const input of [...OF_VECTORS, sort, groupBy, words]) {
    input.addEventListener("change", () => {
      if ([distinct, diversity].includes(input)) sort.value = groupBy.value = "";
      if ([sort, groupBy].includes(input)) {
        distinct.checked = false;
        diversity.value = 0;
      }
      onChange();
    });
  }
}
