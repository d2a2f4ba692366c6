// Facets: values that several pictures share. A click on a value adds it to the filter or removes it.

import * as api from "./api.js";
import { END_OF_DAY } from "./conditions.js";
import { abbreviated, element, formatCount, own, screenReaderText } from "./elements.js";
import { stringify } from "./json.js";
import { PAGE, isRanked, toAddress, toBody } from "./query.js";
import { marked } from "./words.js";

const MAX_VALUES = 12; // per column; a button shows the others
const MAX_CHIPS = 2; // per picture
const NO_VALUE = { $exists: false };
const IN_WORDS = { $gte: "from", $lt: "before", $lte: "to", $prefix: "starts with" };
const MS_PER_DAY = 86_400_000;
const LAST_DAY = "9999-12-31"; // ISO 8601 has no day after it

/** The values of a column that a filter allows, if it lists them. */
export const allowedValues = (filter, column) => listedValues(isObject(filter) ? own(filter, column) : undefined);

/** A condition in words if it is a list of values or one that the page's fields or values make, otherwise as JSON. */
export function conditionText(operand) {
  if (isSame(operand, NO_VALUE)) return "no value";
  if (operand?.$lt && isSame(operand, dayOf(operand.$gte))) return operand.$gte;
  const operators = isObject(operand) ? Object.keys(operand) : [];
  if (operators.length && operators.every((name) => own(IN_WORDS, name))) {
    return operators.map((name) => `${IN_WORDS[name]} ${valueText(operand[name])}`.replace(END_OF_DAY, "")).join(", ");
  }
  const values = listedValues(operand);
  return abbreviated(values.length ? values.map(valueText).join(" or ") : stringify(operand));
}

/** The filter with a value of a column added or removed. `range` is the condition for the value, if it is a period. */
function toggleValue(filter, column, value, range) {
  const others = without(filter, column);
  const operand = own(filter, column);
  if (range) return isSame(operand, range) ? others : { ...others, [column]: range };
  const before = listedValues(operand);
  const values = before.includes(value) ? before.filter((each) => each !== value) : [...before, value];
  if (!values.length) return others;
  return { ...others, [column]: values.length === 1 ? values[0] : { $in: values } };
}

/** A filter without its condition on a column; null if it has no other. */
function without(filter, column) {
  const { [column]: _, ...others } = isObject(filter) ? filter : {};
  return Object.keys(others).length ? others : null;
}

/**
 * The values of the columns of `facets`, counted among the pictures that a query finds. A column is counted without its
 * own condition, so that its other values can be chosen.
 */
export async function countValues(query, facets, file, maxK, signal) {
  if (!isRanked(query)) return query.filter === null ? facets : api.facets(query.filter, signal);
  const names = Object.keys(facets.columns);
  const filtered = names.filter((name) => own(query.filter, name) !== undefined);
  const counted = { ...query, k: 1, sort: "", groupBy: "", distinct: false, diversity: null };
  const count = async (columns, filter) =>
    (await api.search(await toBody({ ...counted, filter }, file, maxK, { facets: columns }), signal)).facets;
  const counts = await Promise.all([
    count(names.filter((name) => !filtered.includes(name)), query.filter),
    ...filtered.map((name) => count([name], without(query.filter, name))),
  ]);
  const found = new Map(counts.flatMap(Object.entries));
  return { ...facets, rows: facets.index.ntotal, columns: Object.fromEntries(names.map((name) => [name, found.get(name)])) };
}

/** The values of each column with their counts. Each is a link that adds it to the filter of `query` or removes it. */
export function facetGroups({ columns, rows, index }, query) {
  const groups = Object.entries(columns).filter(([, { values }]) => values.length > 0);
  return groups.map(([column, { values, others }]) => {
    const links = values.map((each) => valueLink(query, column, each, countText(each.count, rows, index.ntotal)));
    const list = element("ul", { class: "values", role: "list", ariaLabel: column }, ...links);
    const name = element("span", { class: "condition-name", ariaHidden: "true" }, column);
    return element("div", { class: "facet" }, name, list, others ? hint(`and ${formatCount(others)} more values`) : null);
  });
}

/** The values that a picture shares with others, each a link that filters by it. One that is there already is left out. */
export function chips({ metadata, group, words }, facets, query) {
  const shown = new Set([group]);
  const isTime = (name) => facets.columns[name].values.some((each) => each.filter);
  const names = Object.keys(facets?.columns ?? {}).filter((name) => !isTime(name));
  const isNew = (value) => value && typeof value === "string" && !shown.has(value) && shown.add(value);
  return names.filter((name) => isNew(own(metadata, name))).slice(0, MAX_CHIPS).map((name) => {
    const value = metadata[name];
    const isActive = allowedValues(query.filter, name).includes(value);
    const filter = isActive ? query.filter : toggleValue(query.filter, name, value);
    return queryLink({ ...query, k: PAGE, filter }, { class: "chip", title: `${name}: ${value}` },
      ...marked(namedValue(name, value), own(words, name)));
  });
}

/** The conditions of the filter, each a link to the query without it. */
export function activeFilters(query) {
  if (!isObject(query.filter)) return [];
  return Object.keys(query.filter).map((column) => {
    const changed = { ...query, k: PAGE, filter: without(query.filter, column) };
    const text = `${column}: ${conditionText(query.filter[column])} ×`;
    return element("li", {}, queryLink(changed, { class: "chip", title: "Remove this filter" }, text));
  });
}

/** The value and size of the group whose first picture this is, as a link to the group's pictures. */
export function groupLink({ group, group_size: size }, query, { kinds }) {
  const column = query.groupBy;
  const isDay = own(kinds, column) === "time" && group !== null;
  const condition = isDay ? dayOf(group) : (group ?? NO_VALUE);
  const changed = { ...query, k: PAGE, filter: { ...query.filter, [column]: condition }, groupBy: "" };
  const name = group === null ? `no ${column}` : isDay ? group : namedValue(column, group);
  const count = element("span", { class: "count" }, formatCount(size), screenReaderText(size === 1 ? " picture" : " pictures"));
  return queryLink(changed, { class: "group", title: "Show this group" }, name, " ", count);
}

/** A link to `query` that does not reload the page. */
export function queryLink(query, properties, ...children) {
  const link = element("a", { href: toAddress(query), ...properties }, ...children);
  link.dataset.query = "";
  return link;
}

function valueLink(query, column, { value, filter: range }, count) {
  const isActive = range ? isSame(own(query.filter, column), range) : allowedValues(query.filter, column).includes(value);
  const changed = { ...query, k: PAGE, filter: toggleValue(query.filter, column, value, range) };
  const text = isBlank(value) ? element("span", { class: "blank" }, valueText(value)) : valueText(value);
  const title = typeof value === "string" && abbreviated(value) !== value ? value : null;
  const link = queryLink(changed, { class: "chip", title, ariaCurrent: isActive ? "true" : null }, text);
  link.dataset.value = stringify([column, value]);
  link.append(element("span", { class: "count" }, count));
  return element("li", {}, link);
}

/** Show `groups` in `root`, an element of the panel of filters. A value that has the focus keeps it. */
export function showGroups(root, groups) {
  const { value } = document.activeElement.dataset;
  root.replaceChildren(...groups);
  if (value === undefined) return;
  const link = [...root.querySelectorAll("li:not([hidden]) > a")].find((each) => each.dataset.value === value);
  (link ?? root.closest("details").querySelector("summary")).focus({ preventScroll: true });
}

/** Show only the first values of each group, with a button for the others. */
export function foldLongLists(groups) {
  for (const list of groups.map((group) => group.querySelector(".values"))) {
    const rest = [...list.children].slice(MAX_VALUES).filter((item) => !item.querySelector("[aria-current]"));
    if (rest.length < 2) continue;
    const more = element("button", { type: "button", class: "chip" }, `${formatCount(rest.length)} more…`);
    more.addEventListener("click", () => {
      for (const item of rest) item.hidden = false;
      more.parentElement.remove();
      rest[0].querySelector("a").focus();
    });
    for (const item of rest) item.hidden = true;
    list.append(element("li", {}, more));
  }
  return groups;
}

/** A value that says what it is about: of answers and numbers, only with the column's name. */
export function namedValue(column, value) {
  const isName = typeof value === "string" && /\p{L}/u.test(value)
    && !/^(\w|yes|no|true|false|none|null|unknown|on|off)$/i.test(value);
  return isName ? valueText(value) : `${column}: ${valueText(value)}`;
}

/** A value in words; also of texts that cannot be seen, or are long. */
export function valueText(value) {
  if (isBlank(value)) return value ? "(blank)" : "(empty)";
  return typeof value === "boolean" ? (value ? "yes" : "no") : abbreviated(String(value));
}

const isBlank = (value) => typeof value === "string" && !value.trim();

/** The condition for the times of a day, such as "2024-05-31". */
function dayOf(day) {
  const next = new Date(Date.parse(day) + MS_PER_DAY);
  return { $gte: day, ...(day < LAST_DAY && !Number.isNaN(next.getTime()) && { $lt: next.toISOString().slice(0, 10) }) };
}

const countText = (count, rows, total) =>
  rows < total ? `≈ ${formatCount(Math.round((count * total) / rows))}` : formatCount(count);
const hint = (text) => element("span", { class: "hint" }, text);
const isSame = (one, other) => stringify(one) === stringify(other);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function listedValues(operand) {
  if (isObject(operand)) return Object.keys(operand).join() === "$in" && Array.isArray(operand.$in) ? operand.$in : [];
  return operand === undefined || operand === null || Array.isArray(operand) ? [] : [operand]; // $or has an array
}
