// Facets: values that several pictures share. A click on a value adds it to the filter or removes it.

import { element, formatCount } from "./elements.js";
import { PAGE, toAddress } from "./query.js";

const MAX_VALUES = 12; // per column; a button shows the others
const MAX_CHIPS = 2; // per picture

/** The values of a column that a filter allows, if it lists them. */
export const allowedValues = (filter, column) => listedValues(isObject(filter) ? filter[column] : undefined);

/** A condition in words if it is a list of values or a range, otherwise as JSON. */
export function conditionText(operand) {
  const bounds = isObject(operand) ? Object.keys(operand).join() : "";
  if (bounds === "$gte,$lt") return `from ${operand.$gte}, before ${operand.$lt}`;
  if (bounds === "$gte,$lte") return `from ${operand.$gte} to ${operand.$lte}`;
  const values = listedValues(operand);
  return values.length ? values.map(valueText).join(" or ") : JSON.stringify(operand);
}

/** The filter with a value of a column added or removed. `range` is the condition for the value, if it is a period. */
function toggleValue(filter, column, value, range) {
  const { [column]: operand, ...others } = isObject(filter) ? filter : {};
  const withoutColumn = Object.keys(others).length ? others : null;
  if (range) return isSame(operand, range) ? withoutColumn : { ...others, [column]: range };
  const before = listedValues(operand);
  const values = before.includes(value) ? before.filter((each) => each !== value) : [...before, value];
  if (!values.length) return withoutColumn;
  return { ...others, [column]: values.length === 1 ? values[0] : { $in: values } };
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

/** The values that a picture shares with others, each a link that filters by it. */
export function chips(metadata, facets, query) {
  const isTime = (name) => facets.columns[name].values.some((each) => each.filter);
  const names = Object.keys(facets?.columns ?? {}).filter((name) => !isTime(name));
  return names.filter((name) => metadata?.[name] && typeof metadata[name] === "string").slice(0, MAX_CHIPS).map((name) => {
    const value = metadata[name];
    const isActive = allowedValues(query.filter, name).includes(value);
    const filter = isActive ? query.filter : toggleValue(query.filter, name, value);
    return queryLink({ ...query, k: PAGE, filter }, { class: "chip", title: `${name}: ${value}` }, namedValue(name, value));
  });
}

/** The conditions of the filter, each a link to the query without it. */
export function activeFilters(query) {
  if (!isObject(query.filter)) return [];
  return Object.keys(query.filter).map((column) => {
    const { [column]: operand, ...others } = query.filter;
    const filter = Object.keys(others).length ? others : null;
    const title = "Remove this filter";
    const link = queryLink({ ...query, k: PAGE, filter }, { class: "chip", title }, `${column}: ${conditionText(operand)} ×`);
    return element("li", {}, link);
  });
}

/** A link to `query` that does not reload the page. */
export function queryLink(query, properties, ...children) {
  const link = element("a", { href: toAddress(query), ...properties }, ...children);
  link.dataset.query = "";
  return link;
}

function valueLink(query, column, { value, filter: range }, count) {
  const isActive = range ? isSame(query.filter?.[column], range) : allowedValues(query.filter, column).includes(value);
  const changed = { ...query, k: PAGE, filter: toggleValue(query.filter, column, value, range) };
  const link = queryLink(changed, { class: "chip", ariaCurrent: isActive ? "true" : null }, valueText(value));
  link.append(element("span", { class: "count" }, count));
  return element("li", {}, link);
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
export const namedValue = (column, value) =>
  typeof value === "string" && !/^(\W*|[\d\W]+|\w|yes|no|true|false|none|null|unknown|on|off)$/i.test(value)
    ? value : `${column}: ${valueText(value)}`;

export const valueText = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : String(value));

const countText = (count, rows, total) =>
  rows < total ? `≈ ${formatCount(Math.round((count * total) / rows))}` : formatCount(count);
const hint = (text) => element("span", { class: "hint" }, text);
const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function listedValues(operand) {
  if (isObject(operand)) return Object.keys(operand).join() === "$in" && Array.isArray(operand.$in) ? operand.$in : [];
  return operand === undefined || operand === null ? [] : [operand];
}
