// Facets: the values that pictures share. A chip or a value's button puts it into the filter, or takes it out again.

import { counted, element } from "./elements.js";
import { PAGE, toAddress } from "./query.js";

const FEW = 12; // values of a column that are shown before somebody wants more
const CHIPS = 2; // on a picture

/** The values of a column that a filter lets through, as far as they are listed in it. */
export const chosen = (filter, column) => listed(isObject(filter) ? filter[column] : undefined);

/** A condition in words where it lists values or is a period, else as it is. */
export function said(given) {
  const bounds = isObject(given) ? Object.keys(given).join() : "";
  if (bounds === "$gte,$lt") return `from ${given.$gte}, before ${given.$lt}`;
  if (bounds === "$gte,$lte") return `from ${given.$gte} to ${given.$lte}`;
  const values = listed(given);
  return values.length ? values.map(shown).join(" or ") : JSON.stringify(given);
}

/** The filter with this value of a column let through, or no longer; with this condition, where a value has its own. */
export function toggled(filter, column, value, condition) {
  if (condition) {
    const { [column]: before, ...rest } = isObject(filter) ? filter : {};
    if (!same(before, condition)) return { ...rest, [column]: condition };
    return Object.keys(rest).length ? rest : null;
  }
  const before = chosen(filter, column);
  const values = before.includes(value) ? before.filter((each) => each !== value) : [...before, value];
  const { [column]: _, ...others } = isObject(filter) ? filter : {};
  if (!values.length) return Object.keys(others).length ? others : null;
  return { ...others, [column]: values.length === 1 ? values[0] : { $in: values } };
}

/** Groups of values with their counts, for the query they narrow down. */
export function facetGroups({ columns, rows, index }, query) {
  const groups = Object.entries(columns).filter(([, { values }]) => values.length > 0);
  return groups.map(([column, { values, others }]) => {
    const links = values.map((each) => valueLink(query, column, each, share(each.count, rows, index.ntotal)));
    const list = element("ul", { class: "values", role: "list", ariaLabel: column }, ...links);
    const name = element("span", { class: "condition-name", ariaHidden: "true" }, column);
    return element("div", { class: "facet" }, name, list, others ? hint(`and ${counted(others)} more values`) : null);
  });
}

/** The values of a picture that others share, each a link to those of the same value. */
export function chips(metadata, facets, query) {
  const isTime = (name) => facets.columns[name].values.some((each) => each.filter);
  const names = Object.keys(facets?.columns ?? {}).filter((name) => !isTime(name));
  return names.filter((name) => metadata?.[name] && typeof metadata[name] === "string").slice(0, CHIPS).map((name) => {
    const value = metadata[name];
    const kept = chosen(query.filter, name).includes(value);
    const filter = kept ? query.filter : toggled(query.filter, name, value);
    return queryLink({ ...query, k: PAGE, filter }, { class: "chip", title: `${name}: ${value}` }, value);
  });
}

/** What the filter asks for, each with a link to the same without it. */
export function activeFilters(query) {
  if (!isObject(query.filter)) return [];
  return Object.keys(query.filter).map((column) => {
    const { [column]: given, ...others } = query.filter;
    const filter = Object.keys(others).length ? others : null;
    const title = "Take this filter away";
    const link = queryLink({ ...query, k: PAGE, filter }, { class: "chip", title }, `${column}: ${said(given)} ×`);
    return element("li", {}, link);
  });
}

/** A link that asks for `query` in place. */
export function queryLink(query, properties, ...children) {
  const link = element("a", { href: toAddress(query), ...properties }, ...children);
  link.dataset.query = "";
  return link;
}

function valueLink(query, column, { value, filter: condition }, count) {
  const here = condition ? same(query.filter?.[column], condition) : chosen(query.filter, column).includes(value);
  const changed = { ...query, k: PAGE, filter: toggled(query.filter, column, value, condition) };
  const link = queryLink(changed, { class: "chip", ariaCurrent: here ? "true" : null }, shown(value));
  link.append(element("span", { class: "count" }, count));
  return element("li", {}, link);
}

/** The first values of each group alone, with a button for the others. */
export function folded(groups) {
  for (const list of groups.map((group) => group.querySelector(".values"))) {
    const rest = [...list.children].slice(FEW).filter((item) => !item.querySelector("[aria-current]"));
    if (rest.length < 2) continue;
    const more = element("button", { type: "button", class: "chip" }, `${counted(rest.length)} more…`);
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

export const shown = (value) => (typeof value === "boolean" ? (value ? "yes" : "no") : String(value));

const share = (count, rows, of) => (rows < of ? `≈ ${counted(Math.round((count * of) / rows))}` : counted(count));
const hint = (text) => element("span", { class: "hint" }, text);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function listed(given) {
  if (isObject(given)) return Object.keys(given).join() === "$in" && Array.isArray(given.$in) ? given.$in : [];
  return given === undefined || given === null ? [] : [given];
}
