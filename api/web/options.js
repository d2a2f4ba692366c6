// The options of a search in the form: what is folded, the lowest score, and how much the pictures are to differ.

import { byId } from "./elements.js";

const distinct = byId("distinct");
const minScore = byId("min-score");
const diversity = byId("diversity");

/** Show the options of a query. */
export function fillOptions(query) {
  distinct.checked = query.distinct;
  minScore.value = query.minScore ?? "";
  diversity.value = query.diversity ?? 0;
}

export function readOptions() {
  return {
    distinct: distinct.checked,
    minScore: minScore.value === "" ? null : minScore.valueAsNumber,
    diversity: diversity.valueAsNumber || null,
  };
}

export function watchOptions(onChange) {
  for (const input of [distinct, minScore, diversity]) input.addEventListener("change", onChange);
}
