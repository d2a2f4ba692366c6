// The search options in the form: fold duplicates, minimum score, only what fits the words, diversity.

import { byId } from "./elements.js";

const distinct = byId("distinct");
const minScore = byId("min-score");
const fitting = byId("fitting");
const diversity = byId("diversity");

/** Show the options of a query. */
export function fillOptions(query) {
  distinct.checked = query.distinct;
  minScore.value = query.minScore ?? "";
  fitting.checked = query.fitting;
  diversity.value = query.diversity ?? 0;
}

export function readOptions() {
  return {
    distinct: distinct.checked,
    minScore: minScore.value === "" ? null : minScore.valueAsNumber,
    fitting: fitting.checked,
    diversity: diversity.valueAsNumber || null,
  };
}

export function watchOptions(onChange) {
  for (const input of [distinct, minScore, fitting, diversity]) input.addEventListener("change", onChange);
}
